"""One attempt at a request on one route, and who is to blame when it fails."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass

import grpc.aio

from draftproof.errors import (
    DrainingError,
    FingerprintMismatchError,
    InternalError,
    OverloadedError,
    PeerUnavailableError,
    ProtocolError,
    RequestCancelledError,
    RequestError,
    UnavailableError,
)
from draftproof.rpc.status import from_rpc_error
from draftproof.v1 import draft_pb2, draft_pb2_grpc, generation_pb2, generation_pb2_grpc
from orchestrator.routing import Route
from orchestrator.workers import State, Worker


class Reason(enum.Enum):
    """Why a request went on elsewhere; the label of the fallback counters."""

    DRAFT_LOST = "draft_lost"
    DRAFT_SLOW = "draft_slow"
    TARGET_LOST = "target_lost"
    TARGET_SLOW = "target_slow"
    DRAINING = "draining"
    MISMATCH = "mismatch"
    OVERLOADED = "overloaded"
    NO_DRAFT = "no_draft"


class StalledError(UnavailableError):
    """No round came back in time."""


@dataclass(frozen=True, slots=True)
class Fallback:
    """What to do after a failed attempt.

    Attributes:
        reason: for the counters.
        blamed: the worker to avoid; None where nobody is at fault.
        pause: seconds to wait first.
    """

    reason: Reason
    blamed: Worker | None
    pause: float = 0.0


@dataclass(frozen=True, slots=True)
class Patience:
    """How long an attempt may be silent.

    Attributes:
        opening: seconds until the session is open, the target's queue included.
        round: seconds between rounds, the prompt's prefill included.
    """

    opening: float = 30.0
    round: float = 10.0


async def attempt(
    request: generation_pb2.GenerateRequest, route: Route, patience: Patience, timeout: float | None
) -> AsyncIterator[generation_pb2.GenerateResponse]:
    """Runs a request on a route; the call is cancelled when the iterator is closed.

    Raises:
        RequestError: it failed; StalledError where it was silent for too long.
    """
    if route.draft is None:
        async with aclosing(_events(_target_call(request, route, timeout), patience)) as responses:
            async for response in responses:
                yield response
    else:
        async with aclosing(_events(_draft_call(request, route.draft, route.target, timeout), patience)) as drafted:
            async for answer in drafted:
                yield answer.event


def _target_call(
    request: generation_pb2.GenerateRequest, route: Route, timeout: float | None
) -> grpc.aio.UnaryStreamCall[generation_pb2.GenerateRequest, generation_pb2.GenerateResponse]:
    return generation_pb2_grpc.GenerationServiceStub(route.target.channel).Generate(request, timeout=timeout)


def _draft_call(
    request: generation_pb2.GenerateRequest, draft: Worker, target: Worker, timeout: float | None
) -> grpc.aio.UnaryStreamCall[draft_pb2.DraftRequest, draft_pb2.DraftResponse]:
    routed = draft_pb2.DraftRequest(generation=request, target=target.address)
    return draft_pb2_grpc.DraftServiceStub(draft.channel).Draft(routed, timeout=timeout)


async def _events(call, patience: Patience):  # type: ignore[no-untyped-def]
    """Messages of a call until its end, each within the time it may take."""
    silence = patience.opening
    try:
        while True:
            try:
                async with asyncio.timeout(silence):
                    message = await call.read()
            except TimeoutError:
                raise StalledError(f"no answer for {silence:g} s") from None
            except grpc.aio.AioRpcError as error:
                raise from_rpc_error(error) from None
            except asyncio.CancelledError:
                if call.cancelled() and not asyncio.current_task().cancelling():
                    raise UnavailableError("the call was cancelled from the other side") from None
                raise
            if message is grpc.aio.EOF:
                return
            silence = patience.round
            yield message
    finally:
        call.cancel()


def blame(error: RequestError, route: Route) -> Fallback | None:
    """What to do after an error; None where it is the caller's to see."""
    draft, target = route.draft, route.target
    if isinstance(error, OverloadedError):
        return Fallback(Reason.OVERLOADED, None, error.retry_delay or 0.1)
    if isinstance(error, DrainingError):
        leaving = draft if draft is not None and draft.state is State.DRAINING else target
        return Fallback(Reason.DRAINING, leaving, 0.02)
    if isinstance(error, FingerprintMismatchError):
        return Fallback(Reason.MISMATCH, draft)
    if isinstance(error, StalledError):
        # a target that is gone shows on the draft's own link; one that is there answers in time
        return Fallback(Reason.TARGET_SLOW, target) if draft is None else Fallback(Reason.DRAFT_SLOW, draft)
    if isinstance(error, PeerUnavailableError) and draft is not None:
        return Fallback(Reason.TARGET_LOST, target)
    if isinstance(error, UnavailableError | InternalError | ProtocolError | RequestCancelledError):
        return Fallback(Reason.TARGET_LOST, target) if draft is None else Fallback(Reason.DRAFT_LOST, draft)
    return None
