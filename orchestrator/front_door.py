"""What clients see of a cluster: GenerationService and OrchestratorService at one address."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import grpc.aio

from draftproof.errors import (
    DrainingError,
    InvalidArgumentError,
    PeerUnavailableError,
    RequestCancelledError,
    RequestError,
)
from draftproof.metrics.cluster import OrchestratorMetrics
from draftproof.sampling.params import SamplingParams
from draftproof.serving import prompt
from draftproof.v1 import generation_pb2, generation_pb2_grpc
from draftproof.version import VERSION
from draftproof.wire import params as wire_params
from orchestrator.admission import Admission
from orchestrator.relay import Relay, RelayConfig
from orchestrator.routing import Router
from orchestrator.workers import Fleet, Role

MAX_PRIORITY = 100


@dataclass(slots=True)
class Totals:
    """Sums since the start."""

    finished: int = 0
    drafted: int = 0
    accepted: int = 0
    committed: int = 0
    rounds: int = 0
    failed: Counter[str] = field(default_factory=Counter)

    def add(self, event: generation_pb2.GenerateResponse) -> None:
        """Takes an event on its way out."""
        kind = event.WhichOneof("event")
        if kind == "chunk":
            chunk = event.chunk
            self.rounds += 1
            self.drafted += chunk.examined
            self.accepted += chunk.accepted
            self.committed += len(chunk.tokens)
        elif kind == "finished":
            self.finished += 1


class Requests:
    """Running and waiting requests by name, so that they can be cancelled."""

    def __init__(self) -> None:
        self._scopes: dict[str, set[asyncio.Timeout]] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._count = 0

    @contextmanager
    def named(self, name: str, scope: asyncio.Timeout) -> Iterator[None]:
        """Registers a request while it runs."""
        scopes = self._scopes.setdefault(name, set())
        scopes.add(scope)
        self._count += 1
        self._idle.clear()
        try:
            yield
        finally:
            scopes.discard(scope)
            if not scopes:
                self._scopes.pop(name, None)
            self._count -= 1
            if not self._count:
                self._idle.set()

    def cancel(self, name: str) -> int:
        """Ends all requests of a name; returns how many."""
        scopes = self._scopes.get(name, set())
        for scope in scopes:
            scope.reschedule(asyncio.get_running_loop().time())
        return len(scopes)

    def cancel_all(self) -> None:
        """Ends all requests."""
        for name in list(self._scopes):
            self.cancel(name)

    async def idle(self) -> None:
        """Returns when none is left."""
        await self._idle.wait()


class _Timer:
    """Time to the first token and between tokens of one request."""

    def __init__(self, metrics: OrchestratorMetrics, begun: float) -> None:
        self._metrics = metrics
        self._last = begun
        self._first = True

    def event(self, event: generation_pb2.GenerateResponse) -> None:
        """Takes an event on its way out."""
        tokens = len(event.chunk.tokens)
        if not tokens:
            return
        now = time.monotonic()
        if self._first:
            self._metrics.first_token(now - self._last)
            self._first = False
        else:
            self._metrics.gap(now - self._last, tokens)
        self._last = now


class FrontDoor(generation_pb2_grpc.GenerationServiceServicer):
    """GenerationService over the fleet."""

    def __init__(
        self,
        fleet: Fleet,
        router: Router,
        admission: Admission,
        config: RelayConfig,
        metrics: OrchestratorMetrics,
        max_message_bytes: int,
    ) -> None:
        self.totals = Totals()
        self.requests = Requests()
        self._fleet = fleet
        self._router = router
        self._admission = admission
        self._config = config
        self._metrics = metrics
        self._max_message_bytes = max_message_bytes
        self._draining = asyncio.Event()

    async def drain(self, grace: float) -> None:
        """Refuses new requests and waits for running ones; those left after `grace` seconds end as DRAINING."""
        self._draining.set()
        self._admission.refuse(DrainingError("the orchestrator is shutting down", retry_delay=0.5))
        try:
            await asyncio.wait_for(self.requests.idle(), grace)
        except TimeoutError:
            self.requests.cancel_all()
            await self.requests.idle()

    async def Generate(
        self,
        request: generation_pb2.GenerateRequest,
        context: grpc.aio.ServicerContext[generation_pb2.GenerateRequest, generation_pb2.GenerateResponse],
    ) -> None:
        """Streams one continuation, carried over failures."""
        if self._draining.is_set():
            raise DrainingError("the orchestrator is shutting down", retry_delay=0.5)
        params = self._check(request)
        begun = time.monotonic()
        remaining = context.time_remaining()
        deadline = None if remaining is None else begun + remaining
        relay = Relay(request, params, self._fleet, self._router, self._config, self._metrics, deadline)
        timer = _Timer(self._metrics, begun)
        outcome = "CANCELLED"
        scope = asyncio.timeout(None)
        write: asyncio.Future[None] | None = None
        try:
            async with scope, self._admitted(request, scope, remaining), aclosing(relay.events()) as events:
                # written here, not yielded: a caller that doesn't read must not keep a cancel from its request
                async for event in events:
                    timer.event(event)
                    self.totals.add(event)
                    write = asyncio.ensure_future(context.write(event))
                    await asyncio.shield(write)
            outcome = "OK"
        except TimeoutError:
            if not scope.expired():
                raise
            if write is not None:
                # gRPC takes no status beside a message that is under way; nothing but this call waits for the caller
                await asyncio.wait({write})
            if self._draining.is_set():
                outcome = "DRAINING"
                raise DrainingError(
                    "the orchestrator is shutting down; go on from the prefix", retry_delay=0.5
                ) from None
            raise RequestCancelledError("the request was cancelled by name") from None
        except RequestError as error:
            outcome = error.reason
            self.totals.failed[error.reason] += 1
            raise
        finally:
            self._metrics.ended(outcome, time.monotonic() - begun)

    @asynccontextmanager
    async def _admitted(
        self, request: generation_pb2.GenerateRequest, scope: asyncio.Timeout, patience: float | None
    ) -> AsyncIterator[None]:
        with self.requests.named(request.request_id, scope):
            async with self._admission.enter(request.priority, patience):
                yield

    async def GetServerInfo(
        self,
        request: generation_pb2.GetServerInfoRequest,
        context: grpc.aio.ServicerContext[generation_pb2.GetServerInfoRequest, generation_pb2.GetServerInfoResponse],
    ) -> generation_pb2.GetServerInfoResponse:
        """Describes the cluster as one server."""
        targets, drafts = self._fleet.ready(Role.TARGET), self._fleet.ready(Role.DRAFT)
        if not targets:
            raise PeerUnavailableError("no target is ready", retry_delay=1.0)
        target, draft = targets[0], drafts[0] if drafts else None
        return generation_pb2.GetServerInfoResponse(
            role="orchestrator",
            version=VERSION,
            target=target.fingerprint,
            draft=draft.fingerprint if draft else None,
            drafter=draft.fingerprint.model if draft else "",
            max_context=min(t.max_context for t in targets),
            slots=sum(t.slots for t in targets),
            max_gamma=min(t.max_gamma for t in targets),
            default_gamma=draft.default_gamma if draft else 0,
            max_message_bytes=self._max_message_bytes,
            sessions=self._admission.running,
            waiting=self._admission.waiting,
            chat_template=target.chat_template,
            targets=[t.address for t in targets],
            pid=os.getpid(),
        )

    def _check(self, request: generation_pb2.GenerateRequest) -> SamplingParams:
        """Refuses what no worker would take, before it queues."""
        prompt.check_request(request)
        params = wire_params.from_proto(request.sampling)
        if not -MAX_PRIORITY <= request.priority <= MAX_PRIORITY:
            raise InvalidArgumentError.of("priority", f"in [-{MAX_PRIORITY}, {MAX_PRIORITY}]", request.priority)
        if request.WhichOneof("prompt") is None:
            raise InvalidArgumentError.of("prompt", "one of text, token_ids or chat", None)
        return params
