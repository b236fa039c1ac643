"""Statuses that don't come from a healthy Draftproof server."""

from __future__ import annotations

import grpc
import pytest
from google.protobuf.any_pb2 import Any
from google.rpc import error_details_pb2, status_pb2

from draftproof.errors import (
    DeadlineExceededError,
    InternalError,
    InvalidArgumentError,
    MessageTooLargeError,
    OverloadedError,
    RequestCancelledError,
    RequestError,
    UnauthenticatedError,
    UnavailableError,
    UnsupportedError,
)
from draftproof.rpc.status import from_rpc_error, to_status

Code = grpc.StatusCode
DETAILS = "grpc-status-details-bin"


def failure(code: Code, details: str | None = "", trailers: dict[str, bytes] | None = None) -> grpc.aio.AioRpcError:
    metadata = None if trailers is None else grpc.aio.Metadata(*trailers.items())
    return grpc.aio.AioRpcError(code, trailing_metadata=metadata, details=details)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (Code.UNAVAILABLE, UnavailableError),
        (Code.DEADLINE_EXCEEDED, DeadlineExceededError),
        (Code.CANCELLED, RequestCancelledError),
        (Code.RESOURCE_EXHAUSTED, OverloadedError),
        (Code.INVALID_ARGUMENT, InvalidArgumentError),
        (Code.UNAUTHENTICATED, UnauthenticatedError),
        (Code.PERMISSION_DENIED, UnauthenticatedError),
        (Code.UNIMPLEMENTED, UnsupportedError),
        (Code.INTERNAL, InternalError),
        (Code.UNKNOWN, InternalError),
        (Code.DATA_LOSS, InternalError),
    ],
)
def test_plain_statuses(code: Code, kind: type[RequestError]) -> None:
    error = from_rpc_error(failure(code, "why"))
    assert type(error) is kind
    assert error.message.startswith("why")
    assert code.name in error.message


@pytest.mark.parametrize("code", list(Code))
def test_every_status_has_an_error(code: Code) -> None:
    assert isinstance(from_rpc_error(failure(code, None)), RequestError)


@pytest.mark.parametrize("side", ["CLIENT: Sent", "CLIENT: Received", "SERVER: Sent", "SERVER: Received"])
def test_message_limits_name_the_setting(side: str) -> None:
    error = from_rpc_error(failure(Code.RESOURCE_EXHAUSTED, f"{side} message larger than max (9 vs. 8)"))
    assert type(error) is MessageTooLargeError
    assert error.metadata["setting"] == "max_message_bytes"
    assert "max_message_bytes" in error.message
    assert "9 vs. 8" in error.message


def test_hints() -> None:
    assert "tls.ca" in from_rpc_error(failure(Code.UNAVAILABLE, "x: CERTIFICATE_VERIFY_FAILED")).message
    assert "plaintext" in from_rpc_error(failure(Code.UNAVAILABLE, "x: WRONG_VERSION_NUMBER")).message
    assert "Draftproof server" in from_rpc_error(failure(Code.UNIMPLEMENTED)).message


@pytest.mark.parametrize(
    "trailer",
    [
        b"\xff\xff\xff",
        status_pb2.Status(
            code=Code.UNAVAILABLE.value[0], details=[Any(type_url="x", value=b"\xff")]
        ).SerializeToString(),
        status_pb2.Status(
            code=Code.UNAVAILABLE.value[0],
            details=[Any(type_url="type.googleapis.com/google.rpc.ErrorInfo", value=b"\xff\xff")],
        ).SerializeToString(),
    ],
    ids=["no status", "unknown detail", "torn ErrorInfo"],
)
def test_garbage_details_fall_back_to_the_code(trailer: bytes) -> None:
    assert type(from_rpc_error(failure(Code.UNAVAILABLE, "why", {DETAILS: trailer}))) is UnavailableError


def packed(reason: str, domain: str) -> bytes:
    detail = Any()
    detail.Pack(error_details_pb2.ErrorInfo(reason=reason, domain=domain))
    return status_pb2.Status(code=Code.ABORTED.value[0], details=[detail]).SerializeToString()


@pytest.mark.parametrize(("reason", "domain"), [("PREFIX_LOST", "googleapis.com"), ("FROM_THE_FUTURE", "draftproof")])
def test_foreign_reasons_fall_back_to_the_code(reason: str, domain: str) -> None:
    assert type(from_rpc_error(failure(Code.ABORTED, "why", {DETAILS: packed(reason, domain)}))) is InternalError


def test_details_of_another_code_are_not_believed() -> None:
    error = from_rpc_error(failure(Code.UNAVAILABLE, "why", {DETAILS: packed("PREFIX_LOST", "draftproof")}))
    assert type(error) is UnavailableError


def test_statuses_stay_small_enough_for_trailers() -> None:
    """Past 8 KB gRPC drops the trailers, and with them the error."""
    metadata = {f"{i}" * 1000: "γ" * 10_000 for i in range(100)}
    status = to_status(OverloadedError("🦊" * 10_000, metadata=metadata, retry_delay=1.0))
    assert len(status.SerializeToString()) * 4 / 3 + 3 * len(status.message.encode()) < 8000
    assert status.message.startswith("🦊🦊")
    assert status.message.endswith("…")
