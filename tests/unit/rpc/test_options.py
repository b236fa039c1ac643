"""Limits are explicit, the same on both sides, and large enough."""

from __future__ import annotations

import math

import pytest

from draftproof.errors import ConfigError, MessageTooLargeError
from draftproof.rpc.options import RpcLimits, channel_options, check_size, server_options
from draftproof.v1 import target_pb2 as pb


@pytest.mark.parametrize("limits", [RpcLimits(), RpcLimits(max_message_bytes=5000, keepalive_seconds=1.5)])
def test_both_sides_agree(limits: RpcLimits) -> None:
    server, channel = dict(server_options(limits)), dict(channel_options(limits))
    for options in (server, channel):
        assert options["grpc.max_send_message_length"] == limits.max_message_bytes
        assert options["grpc.max_receive_message_length"] == limits.max_message_bytes
    shared = server.keys() & channel.keys()
    assert {key: server[key] for key in shared} == {key: channel[key] for key in shared}
    assert {"grpc.keepalive_time_ms", "grpc.keepalive_permit_without_calls", "grpc.http2.lookahead_bytes"} <= shared


def test_no_client_can_ping_oftener_than_a_server_allows() -> None:
    fastest = dict(channel_options(RpcLimits(keepalive_seconds=1)))["grpc.keepalive_time_ms"]
    strictest = dict(server_options(RpcLimits(keepalive_seconds=3600)))["grpc.http2.min_ping_interval_without_data_ms"]
    assert strictest < fastest


def test_option_lists_name_each_option_once() -> None:
    for options in (server_options(RpcLimits()), channel_options(RpcLimits())):
        assert len(dict(options)) == len(options)


def test_the_default_carries_the_largest_vocabulary_traced_in_full() -> None:
    vocabulary, gamma = 256 * 1024, 16
    proposals = gamma * (4 * vocabulary + 64)
    trace = (gamma + 1) * 2 * (4 * vocabulary + 64)
    assert RpcLimits().max_message_bytes > max(proposals, trace) + 2**20


@pytest.mark.parametrize("value", [0, -1, 1023, 2**31])
def test_message_limit_out_of_range(value: int) -> None:
    with pytest.raises(ConfigError, match="max_message_bytes"):
        RpcLimits(max_message_bytes=value)


@pytest.mark.parametrize("value", [0.0, 0.99, 3601.0, math.nan, math.inf])
def test_keepalive_out_of_range(value: float) -> None:
    with pytest.raises(ConfigError, match="keepalive_seconds"):
        RpcLimits(keepalive_seconds=value)


def test_a_message_over_the_peers_limit_is_refused_before_it_is_sent() -> None:
    message = pb.VerifyRequest(token_digests=pb.TokenDigests(digests=bytes(2000)))
    check_size(message, message.ByteSize())
    with pytest.raises(MessageTooLargeError, match="max_message_bytes") as caught:
        check_size(message, message.ByteSize() - 1)
    assert caught.value.metadata["setting"] == "max_message_bytes"
