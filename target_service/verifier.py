"""The batching loop: sessions in, verdicts out, one ragged forward pass at a time."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from draftproof.engine.interface import Engine, Tokenizer
from draftproof.engine.text import TextStream
from draftproof.errors import (
    DeadlineExceededError,
    DrainingError,
    InternalError,
    InvalidArgumentError,
    NumericsError,
    PrefixLostError,
    ProtocolError,
    RequestError,
)
from draftproof.metrics.target import TargetMetrics
from draftproof.sampling import rng
from draftproof.sampling.draft_q import DraftQ, MalformedQError
from draftproof.serving.model_thread import ModelThread
from draftproof.serving.process import run_all
from draftproof.serving.prompt import check_ids, room
from draftproof.v1 import target_pb2
from draftproof.verification.intake import Sent, admit
from draftproof.verification.round import RoundResult, verify_rounds
from draftproof.wire import distribution as wire_distribution
from draftproof.wire import error as wire_error
from draftproof.wire import params as wire_params
from target_service.admission import Admission
from target_service.schedule import PassLimits, PlannedRow, plan
from target_service.session import Deliver, PendingRound, Session, State, stop_ids

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class VerifierConfig:
    """Settings of the batching loop.

    Attributes:
        queue_limit: most sessions that wait for a slot.
        max_gamma: most proposals in a block.
        idle_evict: seconds without a round after which a waiting session may take the slot.
        idle_timeout: seconds without a round after which a session is closed in any case.
        stall_timeout: seconds a pass may take, or runnable work may wait, before health turns NOT_SERVING (G2).
        reuse_prefixes: whether a freed slot keeps its KV for a session that begins with the same tokens.
        passes: limits of one forward pass.
    """

    queue_limit: int = 64
    max_gamma: int = 16
    idle_evict: float = 5.0
    idle_timeout: float = 60.0
    stall_timeout: float = 60.0
    reuse_prefixes: bool = True
    passes: PassLimits = field(default_factory=PassLimits)


class Verifier:
    """Owns the sessions of this process. Every method runs on the event loop; the engine runs on its own thread."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        config: VerifierConfig,
        metrics: TargetMetrics,
        thread: ModelThread,
        on_health: Callable[[bool], None],
    ) -> None:
        self.config = config
        self.max_context = engine.max_context
        self.vocab_size = engine.vocab_size
        self.weights_version = 0
        self._engine = engine
        self._tokenizer = tokenizer
        self._metrics = metrics
        self._thread = thread
        self._on_health = on_health
        self._admission = Admission(engine.slots, config.queue_limit, config.idle_evict, reuse=config.reuse_prefixes)
        self._sessions: dict[tuple[object, int], Session] = {}
        self._work = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._progress_at = time.monotonic()
        self._healthy = True
        self._draining = False
        metrics.limits(engine.slots, engine.slots * engine.max_context, config.queue_limit)
        metrics.follow(
            active_sessions=lambda: len(self._admission.active),
            waiting_sessions=lambda: self._admission.waiting,
            runnable_sessions=lambda: sum(s.is_runnable for s in self._admission.active),
            kv_cached_tokens=lambda: sum(s.cached for s in self._admission.active),
        )

    @property
    def waiting(self) -> int:
        """Sessions that wait for a slot."""
        return self._admission.waiting

    # -- calls of the streams ------------------------------------------------------------------------------------

    def open(
        self, owner: object, session_id: int, epoch: int, request: target_pb2.OpenSession, deliver: Deliver
    ) -> None:
        """Opens a session, or a new epoch of one; its frames go to `deliver`.

        Raises:
            RequestError: refused; nothing is kept of it.
        """
        if self._draining:
            raise DrainingError("the target is shutting down", retry_delay=1.0)
        old = self._sessions.get((owner, session_id))
        if old is not None:
            if epoch <= old.epoch:
                self._metrics.stale("epoch")
                return
            self._drop(old)
        session = self._build((owner, session_id), epoch, request, deliver)
        self._admission.enter(session, time.monotonic())
        self._sessions[session.key] = session
        self._empty.clear()
        self._admit()

    def block(self, owner: object, session_id: int, epoch: int, number: int, block: target_pb2.Block) -> None:
        """Queues a round for the next pass, or answers a repeated one; stale frames are dropped and counted (P1)."""
        session = self._sessions.get((owner, session_id))
        if session is None or session.epoch != epoch:
            self._metrics.stale("session" if session is None else "epoch")
            return
        last = session.last_verdict
        if last is not None and number <= last.round:
            if number == last.round:
                session.deliver(last)
            else:
                self._metrics.stale("round")
            return
        try:
            if session.pending is not None:
                if session.pending.number == number:
                    return  # sent again before its verdict: the verdict is on its way
                raise ProtocolError(f"round {number} came before the verdict of round {session.pending.number}")
            if session.state is not State.ACTIVE:
                when = "before the session was open" if last is None else "after the session ended"
                raise ProtocolError(f"a block came {when}")
            session.pending = self._take_in(session, number, block)
        except RequestError as error:
            self._fail(session, error)
            return
        self._work.set()

    def close(self, owner: object, session_id: int, epoch: int) -> None:
        """Frees a session. Unknown ones are no error: closing and failing may cross."""
        session = self._sessions.get((owner, session_id))
        if session is None:
            return
        if epoch < session.epoch:
            self._metrics.stale("epoch")
            return
        self._drop(session)

    def close_owner(self, owner: object) -> None:
        """Frees all sessions of a stream that is gone (P2)."""
        for session in [s for s in self._sessions.values() if s.key[0] is owner]:
            self._drop(session)

    async def drain(self, grace: float) -> None:
        """Refuses new sessions, waits for running ones, then tells the rest to go on elsewhere."""
        self._draining = True
        with suppress(TimeoutError):
            await asyncio.wait_for(self._empty.wait(), grace)
        for session in list(self._sessions.values()):
            self._fail(session, DrainingError("the target is shutting down; go on elsewhere from the prefix"))

    # -- the loop ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Runs passes while there is work; ends only by cancellation."""
        await run_all([self._passes(), self._housekeeping()])

    async def _passes(self) -> None:
        while True:
            await self._work.wait()
            rows = plan([s for s in self._admission.active if s.state is State.ACTIVE], self.config.passes)
            if not rows:
                self._work.clear()
                continue
            await self._run_pass(rows)

    async def _run_pass(self, rows: Sequence[PlannedRow]) -> None:
        for row in rows:
            row.session.in_flight = True
        started_ns = time.monotonic_ns()
        outcome: PassOutcome | RequestError
        try:
            outcome = await self._thread.run(self._compute, rows)
        except Exception:
            outcome = _bug("the forward pass failed")
            for row in rows:
                # what the slots hold now is anyone's guess
                row.session.cached = 0
        finally:
            now = time.monotonic()
            for row in rows:
                self._admission.landed(row.session, now)
        self._progressed()
        if isinstance(outcome, RequestError):
            for row in rows:
                if row.session.state is State.ACTIVE:
                    self._fail(row.session, outcome)
        else:
            self._metrics.forward(len(rows), sum(len(r.row.token_ids) for r in rows), outcome.forward_ns)
            self._dispatch(rows, outcome, started_ns)
        self._admit()

    def _compute(self, rows: Sequence[PlannedRow]) -> PassOutcome:
        """On the model thread: forward pass, then verification of the rounds that ride on it."""
        start = time.monotonic_ns()
        logits = self._engine.forward([row.row for row in rows])
        forwarded = time.monotonic_ns()
        rounds = [row.session.round_input() for row in rows if row.verifies]
        results = verify_rounds(logits, rounds) if rounds else []
        return PassOutcome(results, forwarded - start, time.monotonic_ns() - forwarded)

    def _dispatch(self, rows: Sequence[PlannedRow], outcome: PassOutcome, started_ns: int) -> None:
        results = iter(outcome.results)
        for row in rows:
            session = row.session
            result = next(results) if row.verifies else None
            if session.state is not State.ACTIVE:
                continue
            if result is None:
                session.cached = row.row.start + len(row.row.token_ids)
                continue
            if not result.finite:
                self._metrics.numerics()
                session.cached = 0  # nobody else may start from such values
                self._fail(session, NumericsError("the target's logits hold NaN or infinity"))
                continue
            try:
                self._deliver_verdict(session, result, outcome, started_ns)
            except Exception:
                # one session's trouble is not its batch mates'
                self._fail(session, _bug("a round could not be committed"))

    def _deliver_verdict(self, session: Session, result: RoundResult, outcome: PassOutcome, started_ns: int) -> None:
        pending = session.pending
        assert pending is not None
        verdict = session.commit(result)
        verdict.timings.queue_ns = max(0, started_ns - pending.arrived_ns)
        verdict.timings.forward_ns = outcome.forward_ns
        verdict.timings.verify_ns = outcome.verify_ns
        session.pending = None
        session.active_at = time.monotonic()
        frame = target_pb2.VerifyResponse(
            session=session.key[1], epoch=session.epoch, round=pending.number, verdict=verdict
        )
        session.last_verdict = frame
        self._metrics.verdict(verdict)
        session.deliver(frame)
        if verdict.finish_reason:
            self._finish(session)

    # -- sessions ------------------------------------------------------------------------------------------------

    def _build(self, key: tuple[object, int], epoch: int, request: target_pb2.OpenSession, deliver: Deliver) -> Session:
        params = wire_params.from_proto(request.sampling)
        params.check_vocab(self.vocab_size)
        prompt_ids = list(request.prompt_ids)
        output_ids = list(request.output_ids)
        check_ids(prompt_ids, self.vocab_size, "prompt_ids")
        if output_ids:
            check_ids(output_ids, self.vocab_size, "output_ids")
        left = room(len(prompt_ids) + len(output_ids), self.max_context, None)
        if params.max_tokens is not None:
            left = min(left, params.max_tokens - len(output_ids))
            if left < 1:
                raise InvalidArgumentError.of(
                    "output_ids", f"fewer than max_tokens ({params.max_tokens})", len(output_ids)
                )
        if request.request_key and len(request.request_key) != rng.KEY_BYTES:
            raise InvalidArgumentError.of("request_key", f"{rng.KEY_BYTES} bytes", len(request.request_key))
        return Session(
            key=key,
            epoch=epoch,
            request_id=request.request_id,
            prompt_ids=prompt_ids,
            output_ids=output_ids,
            params=params,
            request_key=request.request_key or self._new_key(params.seed, prompt_ids, request.sample_index),
            weights_version=self.weights_version,
            trace_top=request.trace.top_n if request.HasField("trace") else None,
            max_new=left,
            text=TextStream(self._tokenizer, params.stop),
            stop_ids=stop_ids(params, self._tokenizer),
            deliver=deliver,
        )

    def _new_key(self, seed: int | None, prompt_ids: Sequence[int], sample_index: int) -> bytes:
        if seed is None:
            return rng.fresh_key()
        return rng.derive_key(seed, prompt_ids, sample_index, self.weights_version)

    def _take_in(self, session: Session, number: int, block: target_pb2.Block) -> PendingRound:
        """Checks a block before its forward pass (L7, L11)."""
        arrived_ns = time.monotonic_ns()
        gamma = len(block.proposals)
        limit = min(self.config.max_gamma, session.max_new - 1)
        if gamma > limit:
            raise InvalidArgumentError.of("block.proposals", f"at most {limit} long here", gamma)
        if block.start != len(session.tokens):
            raise ProtocolError(f"block starts at {block.start}, the session is at {len(session.tokens)}")
        sent = []
        for proposal in block.proposals:
            self._metrics.encoding(proposal.q)
            try:
                q: DraftQ | MalformedQError = wire_distribution.decode(proposal.q, self.vocab_size)
            except MalformedQError as error:
                q = error
            sent.append(Sent(proposal.token_id, q))
        intake = admit(sent, session.request_key, block.start, self.vocab_size)
        if intake.refusal is not None:
            self._metrics.refusal(intake.refusal.kind)
            log.warning(
                "proposal refused",
                request=session.request_id,
                kind=intake.refusal.kind.name,
                offset=intake.refusal.offset,
                detail=intake.refusal.message,
            )
        return PendingRound(number, intake, arrived_ns)

    def _admit(self) -> None:
        now = time.monotonic()
        for session in self._admission.admit(now):
            self._metrics.reused(session.cached)
            session.deliver(
                target_pb2.VerifyResponse(
                    session=session.key[1],
                    epoch=session.epoch,
                    opened=target_pb2.SessionOpened(
                        request_key=session.request_key,
                        weights_version=session.weights_version,
                        max_new_tokens=session.max_new,
                    ),
                )
            )
        if any(s.is_runnable for s in self._admission.active):
            self._work.set()

    def _fail(self, session: Session, error: RequestError) -> None:
        self._metrics.failed(error.reason)
        session.deliver(
            target_pb2.VerifyResponse(session=session.key[1], epoch=session.epoch, error=wire_error.to_proto(error))
        )
        self._drop(session)

    def _finish(self, session: Session) -> None:
        """Frees the slot at once but remembers the verdict until the peer closes: a repeated round gets it again."""
        self._admission.leave(session, time.monotonic())
        self._admit()

    def _drop(self, session: Session) -> None:
        if self._sessions.pop(session.key, None) is None:
            return
        if session.state is not State.CLOSED:
            self._admission.leave(session, time.monotonic())
        if not self._sessions:
            self._empty.set()
        self._admit()

    def _progressed(self) -> None:
        self._progress_at = time.monotonic()
        if not self._healthy:
            self._healthy = True
            log.info("progress again")
            self._metrics.health(True)
            self._on_health(True)

    async def _housekeeping(self) -> None:
        """Watchdog (G2), eviction for the queue, and sessions that fell silent."""
        while True:
            await asyncio.sleep(min(0.25, self.config.stall_timeout / 4, self.config.idle_evict / 4))
            now = time.monotonic()
            if not self._work.is_set():
                self._progress_at = now
            elif self._healthy and now - self._progress_at > self.config.stall_timeout:
                self._healthy = False
                log.error("no progress", seconds=round(now - self._progress_at, 1))
                self._metrics.health(False)
                self._on_health(False)
            for session in self._admission.evictable(now):
                self._metrics.evicted()
                self._fail(session, PrefixLostError("the slot went to a waiting session; send the prefix again"))
            for session in list(self._sessions.values()):
                if session.pending is not None or session.in_flight or session.state is State.QUEUED:
                    continue
                if now - session.active_at <= self.config.idle_timeout:
                    continue
                if session.state is State.CLOSED:
                    self._drop(session)
                else:
                    limit = self.config.idle_timeout
                    self._fail(session, DeadlineExceededError(f"no round for {limit:g} s (idle_timeout)"))


def _bug(what: str) -> InternalError:
    """Logs the exception in hand under an id; the error names it and nothing else."""
    bug = uuid.uuid4().hex[:12]
    log.exception(what, bug=bug)
    return InternalError(f"{what}; look for {bug} in the target's log")


@dataclass(frozen=True, slots=True)
class PassOutcome:
    """What a pass gave: results of its rounds in row order, and times in nanoseconds."""

    results: Sequence[RoundResult]
    forward_ns: int
    verify_ns: int
