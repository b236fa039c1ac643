"""Message limits, keepalive and flow control, set explicitly and to fit on both sides of every link."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from draftproof.errors import ConfigError, MessageTooLargeError

Options: TypeAlias = list[tuple[str, Any]]

MIN_KEEPALIVE_SECONDS = 1.0
# Every server accepts pings twice as often as any client may be set to send them, so no pair of settings can end in
# GOAWAY too_many_pings.
_MIN_PING_INTERVAL_MS = int(MIN_KEEPALIVE_SECONDS * 500)
# HTTP/2 receive window that a stream starts with; the bandwidth probe widens it. Stated here because gRPC's own start
# has changed between releases: one usual message fits, so that none waits a round trip for the window.
_STREAM_WINDOW_BYTES = 2**20
_INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcLimits:
    """Limits of one process, used for all its servers and channels.

    Attributes:
        max_message_bytes: largest message sent or received. The default carries a full trace of 16 proposals over
            256k tokens (34 MiB), and so the proposals themselves as dense float32 (16 MiB).
        keepalive_seconds: idle time after which a connection is pinged; an unanswered ping ends it after as long again.
    """

    max_message_bytes: int = 64 * 2**20
    keepalive_seconds: float = 10.0

    def __post_init__(self) -> None:
        if not 1024 <= self.max_message_bytes <= _INT32_MAX:
            raise ConfigError("max_message_bytes", f"must be in [1024, {_INT32_MAX}], got {self.max_message_bytes}")
        if not MIN_KEEPALIVE_SECONDS <= self.keepalive_seconds <= 3600:
            raise ConfigError(
                "keepalive_seconds", f"must be in [{MIN_KEEPALIVE_SECONDS:g}, 3600], got {self.keepalive_seconds}"
            )


class Sizeable(Protocol):
    """A protobuf message."""

    def ByteSize(self) -> int:
        """Serialised size in bytes."""
        ...


def check_size(message: Sizeable, max_message_bytes: int) -> None:
    """Refuses a message that the receiver wouldn't take, before it ends a stream that others share.

    Raises:
        MessageTooLargeError: names the setting.
    """
    size = message.ByteSize()
    if size > max_message_bytes:
        raise message_too_large(f"a message of {size} bytes is over the limit of {max_message_bytes}")


def message_too_large(what: str) -> MessageTooLargeError:
    """The error for a message over the limit, naming the setting to raise."""
    return MessageTooLargeError(
        f"{what}; raise max_message_bytes on both sides or send less", metadata={"setting": "max_message_bytes"}
    )


def server_options(limits: RpcLimits) -> Options:
    """Arguments of a server."""
    return [
        *_common_options(limits),
        ("grpc.http2.min_ping_interval_without_data_ms", _MIN_PING_INTERVAL_MS),
        ("grpc.so_reuseport", 0),
    ]


def channel_options(limits: RpcLimits) -> Options:
    """Arguments of a channel."""
    return [
        *_common_options(limits),
        # A channel owns its connection: closing one never depends on another that happens to have equal arguments.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2000),
    ]


def _common_options(limits: RpcLimits) -> Options:
    keepalive_ms = int(limits.keepalive_seconds * 1000)
    return [
        ("grpc.max_send_message_length", limits.max_message_bytes),
        ("grpc.max_receive_message_length", limits.max_message_bytes),
        ("grpc.keepalive_time_ms", keepalive_ms),
        ("grpc.keepalive_timeout_ms", keepalive_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.lookahead_bytes", _STREAM_WINDOW_BYTES),
        ("grpc.http2.bdp_probe", 1),
    ]
