"""Errors to gRPC statuses and back, by the one table in draftproof.errors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn, TypeAlias, cast

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status  # type: ignore[import-untyped]

from draftproof.errors import (
    BY_REASON,
    DeadlineExceededError,
    InternalError,
    InvalidArgumentError,
    OverloadedError,
    RequestCancelledError,
    RequestError,
    UnauthenticatedError,
    UnavailableError,
    UnsupportedError,
)
from draftproof.rpc.options import message_too_large
from draftproof.wire.error import from_duration, to_duration

DOMAIN = "draftproof"
_DETAILS_KEY = "grpc-status-details-bin"
# Trailers over 8 KB are dropped together with the status they carry. Non-ASCII text triples in grpc-message.
_MAX_MESSAGE_BYTES = 1000
_MAX_KEY_BYTES = 64
_MAX_VALUE_BYTES = 200
_MAX_METADATA_ENTRIES = 8

ServicerContext: TypeAlias = "grpc.aio.ServicerContext[object, object]"

# What a status without our ErrorInfo means: it comes from gRPC itself, a proxy, or a server that isn't Draftproof.
_BY_CODE: dict[grpc.StatusCode, type[RequestError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgumentError,
    grpc.StatusCode.OUT_OF_RANGE: InvalidArgumentError,
    grpc.StatusCode.FAILED_PRECONDITION: UnsupportedError,
    grpc.StatusCode.UNIMPLEMENTED: UnsupportedError,
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
    grpc.StatusCode.PERMISSION_DENIED: UnauthenticatedError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: OverloadedError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceededError,
    grpc.StatusCode.CANCELLED: RequestCancelledError,
}


def to_status(error: RequestError) -> status_pb2.Status:
    """The rich status of an error: code, message, ErrorInfo and, with a retry delay, RetryInfo."""
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN)
    for key, value in list(error.metadata.items())[:_MAX_METADATA_ENTRIES]:
        info.metadata[_clip(key, _MAX_KEY_BYTES)] = _clip(value, _MAX_VALUE_BYTES)
    details = [info]
    if error.retry_delay is not None:
        details.append(error_details_pb2.RetryInfo(retry_delay=to_duration(error.retry_delay)))
    status = status_pb2.Status(
        code=grpc.StatusCode[error.code].value[0], message=_clip(error.message, _MAX_MESSAGE_BYTES)
    )
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    return status


async def abort(context: ServicerContext, error: RequestError) -> NoReturn:
    """Ends a call with the error's rich status."""
    await context.abort_with_status(rpc_status.to_status(to_status(error)))
    raise AssertionError("unreachable: abort_with_status raises")


def from_rpc_error(error: grpc.RpcError) -> RequestError:
    """The typed error of a failed call, sync or asyncio, whoever ended it."""
    code, text = error.code(), error.details() or ""
    rich = _rich_status(error)
    if rich is not None and rich.code == code.value[0]:
        typed = _from_status(rich)
        if typed is not None:
            return typed
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in text:
        return message_too_large(text)
    kind = _BY_CODE.get(code, InternalError)
    return kind(f"{text or 'the call failed'}{_hint(code, text)} [{code.name}]")


def _rich_status(error: grpc.RpcError) -> status_pb2.Status | None:
    trailers: Iterable[tuple[str, bytes]] = cast(Any, error.trailing_metadata()) or ()
    for key, value in trailers:
        if key == _DETAILS_KEY:
            try:
                return status_pb2.Status.FromString(value)
            except DecodeError:
                return None
    return None


def _from_status(status: status_pb2.Status) -> RequestError | None:
    """The error, if the status carries a reason of ours that this version knows."""
    info = error_details_pb2.ErrorInfo()
    retry = error_details_pb2.RetryInfo()
    retry_delay: float | None = None
    for detail in status.details:
        try:
            if detail.Is(info.DESCRIPTOR):
                detail.Unpack(info)
            elif detail.Is(retry.DESCRIPTOR):
                detail.Unpack(retry)
                retry_delay = from_duration(retry.retry_delay)
        except DecodeError:
            return None
    kind = BY_REASON.get(info.reason) if info.domain == DOMAIN else None
    return None if kind is None else kind(status.message, metadata=dict(info.metadata), retry_delay=retry_delay)


def _hint(code: grpc.StatusCode, text: str) -> str:
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return " (is a Draftproof server listening there?)"
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return " (the server's certificate doesn't come from the authority given as tls.ca)"
    if "WRONG_VERSION_NUMBER" in text:
        return " (the server speaks plaintext; dial it without TLS or give it a certificate)"
    if "failed to connect" in text and "Socket closed" in text:
        return " (it was closed before the first answer; does the server speak TLS?)"
    return ""


def _clip(text: str, limit: int) -> str:
    """At most `limit` bytes of valid UTF-8."""
    data = text.encode("utf-8", "replace")
    return data.decode() if len(data) <= limit else data[: limit - 3].decode("utf-8", "ignore") + "…"
