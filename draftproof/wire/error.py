"""Errors inside a stream, where one session fails and the others go on."""

from __future__ import annotations

from typing import cast

from google.protobuf.duration_pb2 import Duration

from draftproof.errors import BY_REASON, InternalError, RequestError
from draftproof.v1 import error_pb2 as pb

_MAX_DELAY_SECONDS = 86400.0
_NUMBERS: dict[str, pb.ErrorReason] = {
    reason: cast(pb.ErrorReason, pb.ErrorReason.Value(f"ERROR_REASON_{reason}")) for reason in BY_REASON
}
_BY_NUMBER = {number: BY_REASON[reason] for reason, number in _NUMBERS.items()}


def to_proto(error: RequestError) -> pb.Error:
    """The message for an error."""
    return pb.Error(
        reason=_NUMBERS[error.reason],
        message=_valid(error.message),
        metadata={_valid(key): _valid(value) for key, value in error.metadata.items()},
        retry_delay=None if error.retry_delay is None else to_duration(error.retry_delay),
    )


def from_proto(message: pb.Error) -> RequestError:
    """The error a message stands for; a reason this version doesn't know becomes InternalError."""
    retry_delay = from_duration(message.retry_delay) if message.HasField("retry_delay") else None
    kind = _BY_NUMBER.get(message.reason, InternalError)
    return kind(message.message, metadata=dict(message.metadata), retry_delay=retry_delay)


def to_duration(seconds: float) -> Duration:
    """A retry delay as a Duration, brought into [0, 1 day]."""
    delay = Duration()
    delay.FromNanoseconds(round(_bounded(seconds) * 1e9))
    return delay


def from_duration(delay: Duration) -> float:
    """Seconds of a retry delay, brought into [0, 1 day]: the peer may send anything."""
    return _bounded(delay.seconds + delay.nanos / 1e9)


def _bounded(seconds: float) -> float:
    return min(max(0.0, seconds), _MAX_DELAY_SECONDS)


def _valid(text: str) -> str:
    """Without the lone surrogates that protobuf refuses."""
    return text.encode("utf-8", "replace").decode()
