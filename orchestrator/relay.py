"""One request carried over as many workers as it takes, as one unbroken stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace

import structlog

from draftproof.errors import (
    DrainingError,
    InternalError,
    OverloadedError,
    PeerUnavailableError,
    ProtocolError,
    RequestError,
    UnavailableError,
)
from draftproof.metrics.cluster import OrchestratorMetrics
from draftproof.sampling.params import SamplingParams
from draftproof.serving.statistics import ChunkStats, merge
from draftproof.v1 import generation_pb2, verdict_pb2
from orchestrator.attempt import Fallback, Patience, Reason, attempt, blame, is_stall
from orchestrator.probe import look
from orchestrator.routing import Route, Router, Wish, prefix_digests
from orchestrator.workers import Fleet, Role, State

log = structlog.get_logger(__name__)

_SPECULATION_HELP = "the text may differ from an uninterrupted run of this seed"
_LOOK_SECONDS = 1.0
_POLL_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class RelayConfig:
    """Settings of a relay.

    Attributes:
        patience: how long workers may be silent.
        no_worker: seconds a request waits for a target to be there.
        same_draft: seconds a seeded request waits for a draft of the weights it has met, before it goes on without.
        barren: attempts in a row that may bring nothing.
        rejoin: tokens after which a request that had to go on without a draft looks for one again.
    """

    patience: Patience = field(default_factory=Patience)
    no_worker: float = 30.0
    same_draft: float = 2.0
    barren: int = 8
    rejoin: int = 64


class Relay:
    """State of one request over its attempts.

    Args:
        request: as the client sent it; it becomes its own continuation.
        params: its sampling settings.
        deadline: when the caller's patience ends, monotonic seconds.
    """

    def __init__(
        self,
        request: generation_pb2.GenerateRequest,
        params: SamplingParams,
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
        self._wish = Wish(prefix_digests(request), params.gamma, target_weights=fleet.target_weights)
        # where blocks end and which draft drew them decides what such a request says (L9)
        self._exacting = params.needs_same_blocks
        self._rule = params.rule
        self._started: generation_pb2.Started | None = None
        self._begun_ns = time.monotonic_ns()
        self._first_ns = 0
        self._tokens = 0
        self._lost = ChunkStats()
        self._open = ChunkStats()
        self._lossless = True
        self._notes: list[str] = []
        self._barren = 0
        self._silent_targets: set[int] = set()

    async def events(self) -> AsyncGenerator[generation_pb2.GenerateResponse, None]:
        """Events of the request, whatever happens to the workers.

        Raises:
            RequestError: the caller's own mistake, or no worker left to go on with.
        """
        finished = False
        while not finished:
            pause = 0.0
            route = await self._route()
            for worker in route.workers:
                worker.outstanding += 1
            try:
                async with aclosing(self._attempt(route)) as events:
                    async for event in events:
                        finished = event.HasField("finished")
                        yield event
            except RequestError as error:
                pause = await self._fall_back(error, route)
            finally:
                for worker in route.workers:
                    worker.outstanding -= 1
            if pause:
                await asyncio.sleep(pause)

    async def _attempt(self, route: Route) -> AsyncGenerator[generation_pb2.GenerateResponse, None]:
        """Events of one attempt; ends without `finished` where the request should be routed anew."""
        draft = route.draft.name if route.draft is not None else "none"
        patience = self._config.patience.after(self._barren)
        look_again = self._tokens + self._config.rejoin
        async with aclosing(attempt(self._request, route, patience, self._remaining())) as events:
            async for event in events:
                kind = event.WhichOneof("event")
                if kind == "chunk":
                    self._committed(event.chunk)
                    self._metrics.round(event.chunk, draft=draft, target=route.target.name, rule=self._rule)
                    yield event
                    if route.draft is None and self._tokens >= look_again:
                        if self._may_rejoin():
                            self._close_attempt()
                            return
                        look_again = self._tokens + self._config.rejoin
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
            # what the session says is surer than what the last probe has seen
            self._wish = replace(self._wish, target_weights=started.weights_sha256 or route.target.weights)
            if route.draft is not None:
                self._wish = replace(self._wish, draft_weights=route.draft.weights)
            if self._exacting:
                # the next worker's default may be another
                self._request.sampling.gamma = started.gamma
                self._wish = replace(self._wish, gamma=started.gamma)
            return True
        if started.weights_sha256 and started.weights_sha256 != self._fleet.current(self._wish.target_weights):
            raise DrainingError("the target has changed its weights meanwhile")
        if (started.prompt_ids, started.request_key) != (first.prompt_ids, first.request_key):
            raise ProtocolError("the worker resumed another prompt or key than it was asked to")
        if self._exacting and (started.drafter, started.gamma) != (first.drafter, first.gamma):
            self._note(
                f"drafter {first.drafter or 'none'} with gamma {first.gamma} became {started.drafter or 'none'} with"
                f" gamma {started.gamma}; {_SPECULATION_HELP}"
            )
        return False

    def _committed(self, chunk: generation_pb2.Chunk) -> None:
        if not self._first_ns:
            self._first_ns = time.monotonic_ns() - self._begun_ns
        if self._barren:
            self._barren = 0
            self._wish = replace(self._wish, avoid=frozenset())
        if chunk.weights_sha256:
            self._wish = replace(self._wish, target_weights=chunk.weights_sha256)
        self._open.add(chunk)
        self._tokens += len(chunk.tokens)
        self._lossless = self._lossless and not chunk.not_lossless
        self._request.resume.output_ids.extend([token.id for token in chunk.tokens])

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

    def _close_attempt(self) -> None:
        """Keeps the counts of rounds whose worker won't report on them any more."""
        merge(self._lost.stats, self._open.stats)
        self._open = ChunkStats()

    def _may_rejoin(self) -> bool:
        """Whether a request that had to go on without a draft could have one now."""
        if self._exacting or self._wish.gamma == 0:
            return False
        route = self._router.choose(self._fleet, self._wish)
        return route is not None and route.draft is not None

    async def _fall_back(self, error: RequestError, route: Route) -> float:
        """Decides how to go on; returns the pause before. Raises the error where it is the caller's to see."""
        if isinstance(error, DrainingError) or is_stall(error):
            await asyncio.gather(*(look(worker, self._fleet, _LOOK_SECONDS) for worker in route.workers))
        fallback = blame(error, route)
        if is_stall(error):
            if route.target.life in self._silent_targets:
                # two drafts in a row that hear nothing from it
                fallback = Fallback(Reason.TARGET_SLOW, (route.target,))
            self._silent_targets.add(route.target.life)
        if not (self._tokens and isinstance(error, OverloadedError)):
            # a running request waits out a full queue; it will have its turn
            self._barren += 1
        if fallback is None or self._barren > self._config.barren:
            raise error
        self._close_attempt()
        self._metrics.fallback(fallback.reason.value)
        if fallback.parted and route.draft is not None:
            self._router.parted(route.draft, route.target)
        if self._barren > 1 or not isinstance(error, InternalError | ProtocolError):
            # one bug in one call is no reason to go without the only draft
            self._wish = replace(self._wish, avoid=self._wish.avoid | {worker.life for worker in fallback.blamed})
        called = route.draft or route.target
        gone = isinstance(error, UnavailableError) and not (isinstance(error, DrainingError) or is_stall(error))
        if gone and called in fallback.blamed and called.state is State.READY:
            # until the next probe decides, nobody else should run into it
            called.turn(State.SUSPECT)
            called.problem = error.message
        if self._tokens:
            self._note(f"went on after {self._tokens} tokens ({fallback.reason.value}): {error.message}")
        log.info(
            "fallback",
            request=self._request.request_id,
            reason=fallback.reason.value,
            workers=[worker.name for worker in fallback.blamed],
            tokens=self._tokens,
            problem=error.message,
        )
        return fallback.pause

    async def _route(self) -> Route:
        ends = time.monotonic() + self._config.no_worker
        route = await self._same_draft()
        try:
            async with asyncio.timeout(self._capped(ends - time.monotonic())):
                route = route or await self._ready(lambda route: True)  # a first look, however late it is
        except TimeoutError:
            problem = "no target is ready"
            if self._fleet.ready(Role.TARGET):
                problem += " that has the request's weights; update those that have others"
            raise PeerUnavailableError(problem, retry_delay=1.0) from None
        if route.draft is None and self._wish.gamma != 0:
            self._metrics.fallback(Reason.NO_DRAFT.value)
            if self._exacting:
                self._note(f"no draft was ready: target-only; {_SPECULATION_HELP}")
        return route

    async def _same_draft(self) -> Route | None:
        """A route with the draft that a seeded request needs to say the same; None where there is none in time."""
        if not self._exacting or self._wish.gamma == 0 or not any(w.role is Role.DRAFT for w in self._fleet):
            return None
        with suppress(TimeoutError):
            async with asyncio.timeout(self._capped(self._config.same_draft)):
                return await self._ready(self._has_same_draft)
        return None

    def _has_same_draft(self, route: Route) -> bool:
        weights = self._wish.draft_weights
        return route.draft is not None and (not weights or route.draft.weights == weights)

    async def _ready(self, fits: Callable[[Route], bool]) -> Route:
        """The first route that fits."""
        while True:
            weights = self._fleet.current(self._wish.target_weights)
            if weights != self._wish.target_weights:
                self._wish = replace(self._wish, target_weights=weights)
            route = self._router.choose(self._fleet, self._wish)
            if route is not None and fits(route):
                return route
            with suppress(TimeoutError):
                # not all that keeps a route from fitting ends with a change of the fleet
                async with asyncio.timeout(_POLL_SECONDS):
                    await self._fleet.changed()

    def _remaining(self) -> float | None:
        return None if self._deadline is None else max(0.001, self._deadline - time.monotonic())

    def _capped(self, seconds: float) -> float:
        return min(seconds, self._remaining() or seconds)

    def _note(self, sentence: str) -> None:
        if sentence not in self._notes:
            self._notes.append(sentence)
