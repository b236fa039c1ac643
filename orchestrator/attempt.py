"""One attempt at a request on one route, and who is to blame when it fails."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import grpc.aio

from draftproof.errors import (
    DrainingError,
    FingerprintMismatchError,
    InternalError,
    OverloadedError,
    PeerUnavailableError,
    ProtocolError,
    QuarantinedError,
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
    QUARANTINED = "quarantined"


_SILENT = "silent_seconds"


@dataclass(frozen=True, slots=True)
class Fallback:
    """What to do after a failed attempt.

    Attributes:
        reason: for the counters.
        blamed: the workers to avoid; none where nobody is at fault.
        pause: seconds to wait first.
        parted: whether this draft and this target can't work together for now.
    """

    reason: Reason
    blamed: tuple[Worker, ...] = ()
    pause: float = 0.0
    parted: bool = False


@dataclass(frozen=True, slots=True)
class Patience:
    """How long an attempt may be silent.

    Attributes:
        opening: seconds until the session is open, the target's queue included.
        round: seconds between rounds, the prompt's prefill included.
    """

    opening: float = 30.0
    round: float = 10.0

    def after(self, failures: int) -> Patience:
        """More of it after attempts that brought nothing: they may have been given too little."""
        factor = 2.0 ** min(failures, 3)
        return Patience(factor * self.opening, factor * self.round)


async def attempt(
    request: generation_pb2.GenerateRequest, route: Route, patience: Patience, timeout: float | None
) -> AsyncGenerator[generation_pb2.GenerateResponse, None]:
    """Runs a request on a route; the call is cancelled when the iterator is closed.

    Raises:
        RequestError: it failed, or was silent for too long (see `is_stall`).
    """
    call: Any
    if route.draft is None:
        call = generation_pb2_grpc.GenerationServiceStub(route.target.channel).Generate(request, timeout=timeout)
    else:
        routed = draft_pb2.DraftRequest(generation=request, target=route.target.address)
        call = draft_pb2_grpc.DraftServiceStub(route.draft.channel).Draft(routed, timeout=timeout)
    for worker in route.workers:
        worker.calls.add(call)
    silence = patience.opening
    try:
        while (message := await _read(call, silence)) is not grpc.aio.EOF:
            silence = patience.round
            yield message if route.draft is None else message.event
    finally:
        for worker in route.workers:
            worker.calls.discard(call)
        call.cancel()


async def _read(call: Any, silence: float) -> Any:
    """The next message of a call, grpc.aio.EOF at its end."""
    try:
        async with asyncio.timeout(silence):
            return await call.read()
    except TimeoutError:
        raise UnavailableError(f"no answer for {silence:g} s", metadata={_SILENT: f"{silence:g}"}) from None
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if call.cancelled() and task is not None and not task.cancelling():
            raise UnavailableError("the call was cancelled from the other side") from None
        raise


def is_stall(error: RequestError) -> bool:
    """Whether an attempt ended because nothing came."""
    return _SILENT in error.metadata


def blame(error: RequestError, route: Route) -> Fallback | None:
    """What to do after an error; None where it is the caller's to see. The workers' states are fresh."""
    draft, target = route.draft, route.target
    called = draft or target
    if isinstance(error, OverloadedError):
        full = called if error.metadata.get("setting") == "max_sessions" else target
        return Fallback(Reason.OVERLOADED, (full,), error.retry_delay or 0.1)
    if isinstance(error, DrainingError):
        leaving = tuple(w for w in route.workers if w.state is not State.READY)
        return Fallback(Reason.DRAINING, leaving, 0.0 if leaving else 0.1)
    if isinstance(error, FingerprintMismatchError):
        return Fallback(Reason.MISMATCH, (called,))
    if isinstance(error, QuarantinedError):
        return Fallback(Reason.QUARANTINED, (called,), parted=True)
    if is_stall(error):
        if draft is None or target.state is not State.READY:
            return Fallback(Reason.TARGET_SLOW, (target,))
        return Fallback(Reason.DRAFT_SLOW, (draft,))
    if isinstance(error, PeerUnavailableError) and draft is not None:
        return Fallback(Reason.TARGET_LOST, (target,), parted=True)
    if isinstance(error, UnavailableError | InternalError | ProtocolError | RequestCancelledError):
        if draft is None or (draft.state is State.READY and target.state is not State.READY):
            return Fallback(Reason.TARGET_LOST, (target,))
        return Fallback(Reason.DRAFT_LOST, (draft,))
    return None
