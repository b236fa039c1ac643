"""Errors inside a stream, and the table they share with gRPC statuses."""

from __future__ import annotations

import math

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from draftproof.errors import BY_REASON, InternalError, OverloadedError, RequestError, UnavailableError
from draftproof.v1 import error_pb2 as pb
from draftproof.wire.error import from_duration, from_proto, to_duration, to_proto


def subclasses(kind: type[RequestError]) -> set[type[RequestError]]:
    return {kind}.union(*(subclasses(child) for child in kind.__subclasses__()))


def test_every_reason_of_the_protocol_has_its_class_and_the_reverse() -> None:
    reasons = {
        name.removeprefix("ERROR_REASON_") for name in pb.DESCRIPTOR.enum_types_by_name["ErrorReason"].values_by_name
    } - {"UNSPECIFIED"}
    assert set(BY_REASON) == reasons
    assert all(kind.reason == reason for reason, kind in BY_REASON.items())


def test_every_error_class_can_cross_the_wire() -> None:
    # The two bases stand for no reason of their own.
    assert subclasses(RequestError) - {RequestError, UnavailableError} == set(BY_REASON.values())


@pytest.mark.parametrize("kind", BY_REASON.values())
def test_codes_are_grpc_codes(kind: type[RequestError]) -> None:
    assert grpc.StatusCode[kind.code] is not grpc.StatusCode.OK


@pytest.mark.parametrize("kind", BY_REASON.values())
@pytest.mark.parametrize("retry_delay", [None, 0.0, 0.25, 30.0])
def test_round_trip(kind: type[RequestError], retry_delay: float | None) -> None:
    error = kind("went wrong: γ", metadata={"field": "x"}, retry_delay=retry_delay)
    received = from_proto(pb.Error.FromString(to_proto(error).SerializeToString()))
    assert type(received) is kind
    assert (received.message, received.metadata, received.retry_delay) == (error.message, error.metadata, retry_delay)


def test_the_base_arrives_as_the_subclass_that_shares_its_reason() -> None:
    assert isinstance(from_proto(to_proto(UnavailableError("gone"))), UnavailableError)


@pytest.mark.parametrize("number", [0, 99])
def test_a_reason_of_another_version_is_still_an_error(number: int) -> None:
    message = pb.Error.FromString(b"\x08" + bytes([number]))
    assert type(from_proto(message)) is InternalError


@pytest.mark.parametrize(
    ("seconds", "expected"), [(-1.0, 0.0), (math.nan, 0.0), (math.inf, 86400.0), (1e300, 86400.0), (1.5, 1.5)]
)
def test_retry_delays_stay_in_bounds(seconds: float, expected: float) -> None:
    assert from_duration(to_duration(seconds)) == expected
    assert from_proto(to_proto(OverloadedError("full", retry_delay=seconds))).retry_delay == expected


@pytest.mark.parametrize("seconds", [2**63 - 1, -(2**63)])
def test_hostile_durations_stay_in_bounds(seconds: int) -> None:
    assert 0.0 <= from_duration(Duration(seconds=seconds, nanos=2**31 - 1)) <= 86400.0


def test_text_that_is_no_unicode_still_arrives() -> None:
    error = OverloadedError("\ud800 full", metadata={"key\ud800": "\udfff"})
    assert from_proto(to_proto(error)).message == "? full"
