"""Every error Draftproof raises on purpose, and the one table that ties it to a gRPC status.

DraftproofError
├── ConfigError               a setting is wrong or missing; raised before anything starts
├── ModelLoadError            a model can't be found, read or served
└── RequestError              a request or a peer failed; crosses the wire
    ├── InvalidArgumentError      a field is out of its range
    │   ├── ContextLengthError    the prompt leaves no room in the context
    │   └── MessageTooLargeError  a message is over a limit
    ├── UnsupportedError          the server lacks what the request needs
    ├── UnauthenticatedError      missing or wrong bearer token
    ├── FingerprintMismatchError  the two models don't share a vocabulary or contract
    ├── QuarantinedError          the target's audit caught this draft lying
    ├── ProtocolError             the peer broke the protocol
    ├── PrefixLostError           the session's KV is gone; send the prefix again
    ├── OverloadedError           a queue is full; carries a retry delay
    ├── UnavailableError          nobody there to answer
    │   ├── DrainingError         the server is shutting down
    │   └── PeerUnavailableError  the server behind this one can't be reached
    ├── NumericsError             the model gave NaN or infinity
    ├── DeadlineExceededError     the deadline passed
    ├── RequestCancelledError     the caller cancelled
    └── InternalError             a bug
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar


class DraftproofError(Exception):
    """Base of all errors raised on purpose.

    Attributes:
        message: one sentence for a person.
        metadata: the facts the sentence mentions, as strings (`field`, `limit`, `setting`, …).
        retry_delay: seconds after which a retry makes sense, or None.
    """

    def __init__(
        self, message: str, *, metadata: Mapping[str, str] | None = None, retry_delay: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.metadata: dict[str, str] = dict(metadata or {})
        self.retry_delay = retry_delay


class ConfigError(DraftproofError):
    """A setting is wrong or missing."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}", metadata={"field": field})


class ModelLoadError(DraftproofError):
    """A model can't be found, read or served."""


class RequestError(DraftproofError):
    """A failure that crosses the wire: `reason` is ErrorInfo.reason, `code` the name of the gRPC status."""

    reason: ClassVar[str] = "INTERNAL"
    code: ClassVar[str] = "INTERNAL"


class InvalidArgumentError(RequestError):
    """A field is out of its range; names the field and the limit."""

    reason = "INVALID_ARGUMENT"
    code = "INVALID_ARGUMENT"

    @classmethod
    def of(cls, field: str, limit: str, value: object) -> InvalidArgumentError:
        """The usual form: `field` must be `limit`, got `value`."""
        return cls(f"{field} must be {limit}, got {value!r}", metadata={"field": field, "limit": limit})


class ContextLengthError(InvalidArgumentError):
    """The prompt leaves no room in the context."""

    reason = "CONTEXT_LENGTH"


class MessageTooLargeError(InvalidArgumentError):
    """A message is over a limit; metadata names the setting."""

    reason = "MESSAGE_TOO_LARGE"
    code = "RESOURCE_EXHAUSTED"


class UnsupportedError(RequestError):
    """The server's model or configuration lacks what the request needs."""

    reason = "UNSUPPORTED"
    code = "FAILED_PRECONDITION"


class UnauthenticatedError(RequestError):
    """Missing or wrong bearer token."""

    reason = "UNAUTHENTICATED"
    code = "UNAUTHENTICATED"


class FingerprintMismatchError(RequestError):
    """Draft and target don't share tokenizer, vocabulary or sampling contract."""

    reason = "FINGERPRINT_MISMATCH"
    code = "FAILED_PRECONDITION"


class QuarantinedError(RequestError):
    """The target's audit caught this draft lying about its distribution; it serves the draft's sessions no more."""

    reason = "QUARANTINED"
    code = "FAILED_PRECONDITION"


class ProtocolError(RequestError):
    """The peer sent what the protocol doesn't allow here."""

    reason = "PROTOCOL"
    code = "INVALID_ARGUMENT"


class PrefixLostError(RequestError):
    """The session's KV was evicted; send the committed prefix again under a new epoch."""

    reason = "PREFIX_LOST"
    code = "ABORTED"


class OverloadedError(RequestError):
    """A queue is full; `retry_delay` says when to come back."""

    reason = "OVERLOADED"
    code = "RESOURCE_EXHAUSTED"


class UnavailableError(RequestError):
    """Nobody is there to answer."""

    reason = "PEER_UNAVAILABLE"
    code = "UNAVAILABLE"


class DrainingError(UnavailableError):
    """The server is shutting down."""

    reason = "DRAINING"


class PeerUnavailableError(UnavailableError):
    """The server behind this one can't be reached."""


class NumericsError(RequestError):
    """The model gave NaN or infinity."""

    reason = "NUMERICS"
    code = "INTERNAL"


class DeadlineExceededError(RequestError):
    """The deadline passed."""

    reason = "DEADLINE_EXCEEDED"
    code = "DEADLINE_EXCEEDED"


class RequestCancelledError(RequestError):
    """The caller cancelled."""

    reason = "CANCELLED"
    code = "CANCELLED"


class InternalError(RequestError):
    """A bug in the server; the message holds an id to look for in its log."""


# reason -> class. UnavailableError itself shares PEER_UNAVAILABLE with its subclass, which is what arrives.
BY_REASON: dict[str, type[RequestError]] = {
    cls.reason: cls
    for cls in (
        InvalidArgumentError,
        ContextLengthError,
        MessageTooLargeError,
        UnsupportedError,
        UnauthenticatedError,
        FingerprintMismatchError,
        QuarantinedError,
        ProtocolError,
        PrefixLostError,
        OverloadedError,
        DrainingError,
        PeerUnavailableError,
        NumericsError,
        DeadlineExceededError,
        RequestCancelledError,
        InternalError,
    )
}
