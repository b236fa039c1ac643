"""The batching loop: sessions in, verdicts out, one ragged forward pass at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from draftproof.engine.interface import Engine, Tokenizer
from draftproof.errors import (
    DeadlineExceededError,
    DrainingError,
    NumericsError,
    PrefixLostError,
    ProtocolError,
    QuarantinedError,
    RequestError,
)
from draftproof.metrics.target import TargetMetrics
from draftproof.serving.model_thread import ModelThread
from draftproof.serving.process import run_all
from draftproof.v1 import target_pb2
from draftproof.verification.round import RoundResult
from draftproof.wire import error as wire_error
from target_service.admission import Admission
from target_service.audit import Audit
from target_service.gathering import PassTime, gathered
from target_service.intake import Intake
from target_service.passes import PassOutcome, bug, run_pass
from target_service.schedule import PassLimits, PlannedRow, plan
from target_service.session import Deliver, Session, State
from target_service.turnover import Turnover
from target_service.watchdog import Watchdog

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class VerifierConfig:
    """Settings of the batching loop.

    Attributes:
        queue_limit: most sessions that wait for a slot.
        max_gamma: most proposals in a block.
        max_unaided: most rounds without proposals that follow a block unasked: how far a session may run ahead of a
            caller that doesn't read.
        idle_evict: seconds without a round after which a waiting session may take the slot.
        idle_timeout: seconds without a round after which a session is closed in any case.
        stall_timeout: seconds a pass may take, or runnable work may wait, before health turns NOT_SERVING (G2).
        allow_lossy: whether requests may ask for a rule that bends the output law.
        reuse_prefixes: whether sessions that begin with the same tokens use each other's KV: a running one's, or what a
            freed slot keeps.
        passes: limits of one forward pass.
    """

    queue_limit: int = 64
    max_gamma: int = 16
    max_unaided: int = 64
    idle_evict: float = 5.0
    idle_timeout: float = 60.0
    stall_timeout: float = 60.0
    allow_lossy: bool = False
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
        self._engine = engine
        self._metrics = metrics
        self._thread = thread
        self._watchdog = Watchdog(config.stall_timeout, metrics, on_health)
        self._intake = Intake(
            tokenizer,
            engine.vocab_size,
            engine.max_context,
            config.max_gamma,
            config.max_unaided,
            metrics,
            config.allow_lossy,
            engine.trees,
        )
        self._audit = Audit(config.max_gamma, metrics.audit)
        self._admission = Admission(engine.slots, config.queue_limit, config.idle_evict, reuse=config.reuse_prefixes)
        self.weights = Turnover(engine.weights_sha256, self._admission, thread, self._look)
        self._sessions: dict[tuple[object, int], Session] = {}
        self._pass_time = PassTime()
        self._work = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
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
        self,
        owner: object,
        session_id: int,
        epoch: int,
        request: target_pb2.OpenSession,
        deliver: Deliver,
        drafter: str = "",
    ) -> None:
        """Opens a session, or a new epoch of one; its frames go to `deliver`. `drafter` is who will propose.

        Raises:
            RequestError: refused; nothing is kept of it.
        """
        if self._draining:
            raise DrainingError("the target is shutting down", retry_delay=1.0)
        if self._audit.quarantined(drafter):
            raise QuarantinedError(
                f"the audit of this target caught {drafter} lying; look for 'audit alarm' in its log"
            )
        old = self._sessions.get((owner, session_id))
        if old is not None:
            if epoch <= old.epoch:
                self._metrics.stale("epoch")
                return
            self._drop(old)
        session = self._intake.session(
            (owner, session_id), epoch, request, deliver, self.weights.version, self.weights.sha256, drafter
        )
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
            quarantined = self._audit.quarantined(session.drafter)
            audited = self._audit.examines(session, len(self._admission.active))
            session.pending = self._intake.round(session, number, block, quarantined, audited)
        except RequestError as error:
            self._fail(session, error)
            return
        session.pace.came(time.monotonic())
        self._work.set()

    def halt(self, owner: object, session_id: int, epoch: int) -> None:
        """Lets no round come unasked any more but the one that waits or runs; nothing where none would."""
        session = self._sessions.get((owner, session_id))
        if session is not None and session.epoch == epoch and session.pending is not None:
            session.pending.unaided = 0

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
            if self.weights.due:
                await self.weights.make(self._sessions.values())
                self._admit()
            active = [s for s in self._admission.active if s.state is State.ACTIVE]
            rows = plan(active, self.config.passes)
            if not rows:
                self._work.clear()
                continue
            full = len(rows) < sum(s.is_runnable for s in active)
            expected = [s.pace.expected_at for s in active if s.is_waited_for]
            if full or not await gathered(self._work, len(rows), expected, self._pass_time.seconds):
                await self._run_pass(rows)

    async def _run_pass(self, rows: Sequence[PlannedRow]) -> None:
        for row in rows:
            row.session.in_flight = True
            if row.copy_from is not None:
                self._metrics.shared(row.row.start - row.session.cached)
                row.session.cached, row.session.donor = row.row.start, None
        started_ns = time.monotonic_ns()
        outcome: PassOutcome | RequestError
        try:
            outcome = await self._thread.run(run_pass, self._engine, rows)
        except Exception:
            outcome = bug("the forward pass failed")
            for row in rows:
                # what the slots hold now is anyone's guess
                row.session.cached = 0
        finally:
            now = time.monotonic()
            for row in rows:
                self._admission.landed(row.session, now)
        self._watchdog.progressed()
        if isinstance(outcome, RequestError):
            for row in rows:
                if row.session.state is State.ACTIVE:
                    self._fail(row.session, outcome)
        else:
            self._metrics.forward(len(rows), sum(len(r.row.token_ids) for r in rows), outcome.forward_ns)
            if all(row.verifies for row in rows):
                self._pass_time.learn((time.monotonic_ns() - started_ns) / 1e9)
            self._dispatch(rows, outcome, started_ns)
        self._admit()

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
                self._fail(session, bug("a round could not be committed"))

    def _deliver_verdict(self, session: Session, result: RoundResult, outcome: PassOutcome, started_ns: int) -> None:
        assert session.pending is not None
        pending = session.pending
        following = pending.following()
        frame = session.answer(result, started_ns, outcome.forward_ns, outcome.verify_ns)
        session.active_at = time.monotonic()
        self._metrics.verdict(frame.verdict, session.params.rule)
        session.deliver(frame)
        self._audit.observe(session, pending, result, len(frame.verdict.tokens))
        if following is None or frame.verdict.finish_reason:
            session.pace.left(session.active_at)
        else:
            session.pending = following
        if frame.verdict.finish_reason:
            # the slot is free at once; the verdict stays until the peer closes, should it ask for the round again
            self._admission.leave(session, time.monotonic())
            self._admit()

    # -- sessions ------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Lets the batching loop see what has changed."""
        self._admit()
        self._work.set()

    def _admit(self) -> None:
        now = time.monotonic()
        for session in self._admission.admit(now):
            self._metrics.reused(session.cached)
            session.deliver(session.opening())
        if self.weights.due or any(s.is_runnable for s in self._admission.active):
            self._work.set()

    def _fail(self, session: Session, error: RequestError) -> None:
        self._metrics.failed(error.reason)
        session.deliver(
            target_pb2.VerifyResponse(session=session.key[1], epoch=session.epoch, error=wire_error.to_proto(error))
        )
        self._drop(session)

    def _drop(self, session: Session) -> None:
        if self._sessions.pop(session.key, None) is None:
            return
        if session.state is not State.CLOSED:
            self._admission.leave(session, time.monotonic())
        if not self._sessions:
            self._empty.set()
        self._admit()

    async def _housekeeping(self) -> None:
        """Watchdog (G2), eviction for the queue, and sessions that fell silent."""
        while True:
            await asyncio.sleep(min(0.25, self.config.stall_timeout / 4, self.config.idle_evict / 4))
            now = time.monotonic()
            self._watchdog.look(self._work.is_set())
            for session in self._admission.evictable(now):
                self._metrics.evicted()
                self._fail(session, PrefixLostError("the slot went to a waiting session; send the prefix again"))
            for session in list(self._sessions.values()):
                if not session.is_waited_for or now - session.active_at <= self.config.idle_timeout:
                    continue
                if session.state is State.CLOSED:
                    self._drop(session)
                else:
                    self._fail(
                        session, DeadlineExceededError(f"no round for {self.config.idle_timeout:g} s (idle_timeout)")
                    )
