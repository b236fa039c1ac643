"""One request carried over as many workers as it takes, as one unbroken stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace

import structlog

from draftproof.errors import DrainingError, PeerUnavailableError, ProtocolError, RequestError, UnavailableError
from draftproof.metrics.cluster import OrchestratorMetrics
from draftproof.serving.statistics import ChunkStats, merge
from draftproof.v1 import generation_pb2, verdict_pb2
from orchestrator.attempt import Patience, Reason, attempt, blame
from orchestrator.routing import Route, Router, Wish, prefix_digests
from orchestrator.workers import Fleet, State

log = structlog.get_logger(__name__)

RULE = "token"
_SPECULATION_HELP = "the text may differ from an uninterrupted run of this seed"


@dataclass(frozen=True, slots=True)
class RelayConfig:
    """Settings of a relay.

    Attributes:
        patience: how long workers may be silent.
        no_worker: seconds a request waits for a target to be there.
        barren: attempts in a row that may bring nothing.
    """

    patience: Patience = field(default_factory=Patience)
    no_worker: float = 30.0
    barren: int = 8


class Relay:
    """State of one request over its attempts."""

    def __init__(
        self,
        request: generation_pb2.GenerateRequest,
        fleet: Fleet,
        router: Router,
        config: RelayConfig,
        metrics: OrchestratorMetrics,
        deadline: float | None,
    ) -> None:
        self._request = request
        self._fleet = fleet
        self._router = router
        self._config = config
        self._metrics = metrics
        self._deadline = deadline
        sampling = request.sampling
        self._wish = Wish(prefix_digests(request), sampling.gamma if sampling.HasField("gamma") else None)
        self._seeded = sampling.HasField("seed")
        self._started: generation_pb2.Started | None = None
        self._begun_ns = time.monotonic_ns()
        self._first_ns = 0
        self._tokens = 0
        self._lost = ChunkStats()
        self._open = ChunkStats()
        self._lossless = True
        self._notes: list[str] = []
        self._barren = 0

    async def events(self) -> AsyncGenerator[generation_pb2.GenerateResponse, None]:
        """Events of the request, whatever happens to the workers.

        Raises:
            RequestError: the caller's own mistake, or no worker left to go on with.
        """
        while True:
            route = await self._route()
            workers = [w for w in (route.draft, route.target) if w is not None]
            for worker in workers:
                worker.outstanding += 1
            try:
                async with aclosing(self._attempt(route)) as events:
                    async for event in events:
                        yield event
                return
            except RequestError as error:
                pause = self._fall_back(error, route)
            finally:
                for worker in workers:
                    worker.outstanding -= 1
            await asyncio.sleep(pause)

    async def _attempt(self, route: Route) -> AsyncGenerator[generation_pb2.GenerateResponse, None]:
        self._open = ChunkStats()
        async with aclosing(attempt(self._request, route, self._config.patience, self._remaining())) as events:
            async for event in events:
                kind = event.WhichOneof("event")
                if kind == "chunk":
                    self._committed(event.chunk)
                    self._metrics.round(
                        event.chunk,
                        draft=route.draft.name if route.draft is not None else "none",
                        target=route.target.name,
                        rule=RULE,
                    )
                    yield event
                elif kind == "started":
                    if self._begin(event.started, route):
                        yield event
                elif kind == "finished":
                    yield self._finish(event.finished)
                    return
                elif kind == "handed_back":
                    raise DrainingError("the worker is shutting down and handed the request back")
        raise ProtocolError("the worker ended the stream before the request was finished")

    def _begin(self, started: generation_pb2.Started, route: Route) -> bool:
        """Takes a worker's start; True where the caller should see it."""
        self._router.served(self._wish, route.target)
        first = self._started
        if first is None:
            self._started = started
            self._request.resume.request_key = started.request_key
            if route.draft is not None:
                self._wish = replace(self._wish, draft_weights=route.draft.fingerprint.weights_sha256)
            return True
        if (started.prompt_ids, started.request_key) != (first.prompt_ids, first.request_key):
            raise ProtocolError("the worker resumed another prompt or key than it was asked to")
        if self._seeded and (started.drafter, started.gamma) != (first.drafter, first.gamma):
            self._note(
                f"drafter {first.drafter or 'none'} with gamma {first.gamma} became {started.drafter or 'none'} with"
                f" gamma {started.gamma}; {_SPECULATION_HELP}"
            )
        return False

    def _committed(self, chunk: generation_pb2.Chunk) -> None:
        if not self._first_ns:
            self._first_ns = time.monotonic_ns() - self._begun_ns
        self._barren = 0
        self._wish = replace(self._wish, avoid=frozenset())
        self._open.add(chunk)
        self._tokens += len(chunk.tokens)
        self._lossless = self._lossless and not chunk.not_lossless
        self._request.resume.output_ids.extend(token.id for token in chunk.tokens)

    def _finish(self, finished: generation_pb2.Finished) -> generation_pb2.GenerateResponse:
        stats = finished.stats
        merge(stats, self._lost.stats)
        stats.time.total_ns = time.monotonic_ns() - self._begun_ns
        stats.time.first_token_ns = self._first_ns
        assert self._started is not None
        usage = verdict_pb2.Usage(prompt_tokens=len(self._started.prompt_ids), completion_tokens=self._tokens)
        return generation_pb2.GenerateResponse(
            finished=generation_pb2.Finished(
                finish_reason=finished.finish_reason,
                usage=usage,
                stats=stats,
                lossless=finished.lossless and self._lossless,
                notes=[*self._notes, *finished.notes],
            )
        )

    def _fall_back(self, error: RequestError, route: Route) -> float:
        """Decides how to go on; returns the pause before. Raises the error where it is the caller's to see."""
        fallback = blame(error, route)
        self._barren += 1
        if fallback is None or self._barren > self._config.barren:
            raise error
        merge(self._lost.stats, self._open.stats)
        self._open = ChunkStats()
        self._metrics.fallback(fallback.reason.value)
        if route.draft is not None and fallback.reason is Reason.TARGET_LOST:
            # the draft can't reach it; whether anybody can, the probe will say
            self._wish = replace(self._wish, apart=self._wish.apart | {(route.draft.name, route.target.name)})
        if fallback.blamed is not None:
            self._wish = replace(self._wish, avoid=self._wish.avoid | {fallback.blamed.name})
            called = route.draft or route.target
            if fallback.blamed is called and isinstance(error, UnavailableError) and called.state is State.READY:
                # until the next probe decides, nobody else should run into it
                called.state = State.SUSPECT
                called.problem = error.message
        if self._tokens:
            self._note(f"went on after {self._tokens} tokens ({fallback.reason.value}): {error.message}")
        log.info(
            "fallback",
            request=self._request.request_id,
            reason=fallback.reason.value,
            worker=fallback.blamed.name if fallback.blamed else None,
            tokens=self._tokens,
            problem=error.message,
        )
        return fallback.pause

    async def _route(self) -> Route:
        patience = self._config.no_worker
        remaining = self._remaining()
        try:
            async with asyncio.timeout(patience if remaining is None else min(patience, remaining)):
                while (route := self._router.choose(self._fleet, self._wish)) is None:
                    await self._fleet.changed()
        except TimeoutError:
            raise PeerUnavailableError("no target is ready", retry_delay=1.0) from None
        if route.draft is None and self._wish.gamma != 0:
            self._metrics.fallback(Reason.NO_DRAFT.value)
            if self._seeded:
                self._note(f"no draft was ready: target-only; {_SPECULATION_HELP}")
        return route

    def _remaining(self) -> float | None:
        return None if self._deadline is None else max(0.001, self._deadline - time.monotonic())

    def _note(self, sentence: str) -> None:
        if sentence not in self._notes:
            self._notes.append(sentence)
