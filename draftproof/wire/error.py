"""Errors inside a stream, where one session fails and the others go on."""

from __future__ import annotations

import math
from typing import cast

from draftproof.errors import BY_REASON, InternalError, RequestError
from draftproof.v1 import error_pb2 as pb

_NUMBERS: dict[str, pb.ErrorReason] = {
    reason: cast(pb.ErrorReason, pb.ErrorReason.Value(f"ERROR_REASON_{reason}")) for reason in BY_REASON
}
_BY_NUMBER = {number: BY_REASON[reason] for reason, number in _NUMBERS.items()}


def to_proto(error: RequestError) -> pb.Error:
    """The message for an error."""
    message = pb.Error(
        reason=_NUMBERS[error.reason],
        message=_valid(error.message),
        metadata={_valid(key): _valid(value) for key, value in error.metadata.items()},
    )
    if error.retry_delay is not None and math.isfinite(error.retry_delay):
        message.retry_delay.FromNanoseconds(int(max(error.retry_delay, 0.0) * 1e9))
    return message


def from_proto(message: pb.Error) -> RequestError:
    """The error a message stands for; a reason this version doesn't know becomes InternalError."""
    delay = message.retry_delay
    retry_delay = delay.seconds + delay.nanos / 1e9 if message.HasField("retry_delay") else None
    kind = _BY_NUMBER.get(message.reason, InternalError)
    return kind(message.message, metadata=dict(message.metadata), retry_delay=retry_delay)


def _valid(text: str) -> str:
    """Without the lone surrogates that protobuf refuses."""
    return text.encode("utf-8", "replace").decode()
