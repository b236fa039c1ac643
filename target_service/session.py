"""One session on the target: its tokens, its pending round, and what committing a round means."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from draftproof.audit.transform import Interval
from draftproof.engine.text import TextStream
from draftproof.sampling import rng
from draftproof.sampling.params import Rule, SamplingParams
from draftproof.serving.ending import stop_ids as stop_ids
from draftproof.v1 import target_pb2, verdict_pb2
from draftproof.verification.intake import Intake, RefusalKind
from draftproof.verification.round import RoundInput, RoundResult
from target_service.gathering import Pace
from target_service.records import to_logprobs, to_trace

Deliver = Callable[[target_pb2.VerifyResponse], None]

_REFUSAL = {
    RefusalKind.MALFORMED_Q: verdict_pb2.REFUSAL_KIND_MALFORMED_Q,
    RefusalKind.DRAW_MISMATCH: verdict_pb2.REFUSAL_KIND_DRAW_MISMATCH,
    RefusalKind.ZERO_MASS: verdict_pb2.REFUSAL_KIND_ZERO_MASS,
    RefusalKind.QUARANTINED: verdict_pb2.REFUSAL_KIND_QUARANTINED,
}


class State(enum.Enum):
    """Life of a session."""

    QUEUED = "queued"
    ACTIVE = "active"
    CLOSED = "closed"


@dataclass(slots=True)
class PendingRound:
    """A block that waits for its forward pass.

    Attributes:
        number: of the round.
        intake: its proposals.
        arrived_ns: monotonic time.
        unaided: how many rounds without proposals follow it unasked.
        audited: whether the audit examines it.
        sent: where each proposal lies under its q, for the audit, as it was sent.
    """

    number: int
    intake: Intake
    arrived_ns: int
    unaided: int = 0
    audited: bool = False
    sent: Sequence[Interval] = ()

    def following(self) -> PendingRound | None:
        """The round without proposals that comes unasked after this one; its wait begins now."""
        if not self.unaided:
            return None
        empty = Intake([], [], None, True)
        return PendingRound(self.number + 1, empty, time.monotonic_ns(), self.unaided - 1, self.audited)


@dataclass(eq=False, slots=True)
class Session:
    """One session.

    Attributes:
        key: (owner, session id), unique in the process.
        epoch: incarnation; frames of others are stale.
        slot: KV slot, None while queued.
        cached: tokens whose KV is in the slot and valid.
        max_new: most tokens it may still generate.
        in_flight: whether a pass that holds its row is running.
        pace: how soon its next round comes.
        sample_index: part of its key, where the target makes one.
        continues: it came with a key, from an earlier life of the same request.
        drafter: who proposes, "" where nobody does.
        audited: whether the target made its key, so that nobody could know its numbers.
        turned: its weights have changed and no verdict has said so yet.
        donor: a session whose KV of their common beginning it will copy, once it is computed.
        shared: length of that beginning, more than it has cached itself.
    """

    key: tuple[object, int]
    epoch: int
    request_id: str
    prompt_ids: Sequence[int]
    output_ids: list[int]
    params: SamplingParams
    request_key: bytes
    weights_version: int
    trace_top: int | None
    max_new: int
    text: TextStream
    stop_ids: frozenset[int]
    deliver: Deliver
    state: State = State.QUEUED
    slot: int | None = None
    cached: int = 0
    in_flight: bool = False
    pending: PendingRound | None = None
    last_verdict: target_pb2.VerifyResponse | None = None
    lossless: bool = True
    opened_at: float = 0.0
    active_at: float = 0.0
    pace: Pace = field(default_factory=Pace)
    tokens: list[int] = field(default_factory=list)
    weights_sha256: bytes = b""
    sample_index: int = 0
    continues: bool = False
    turned: bool = False
    donor: Session | None = None
    shared: int = 0
    drafter: str = ""
    audited: bool = False

    def __post_init__(self) -> None:
        self.tokens = [*self.prompt_ids, *self.output_ids]
        for token in self.output_ids:
            self.text.push(token)

    @property
    def waits_for_donor(self) -> bool:
        """Whether what it will copy is still being computed."""
        return self.donor is not None and self.donor.cached < self.shared

    @property
    def start(self) -> int:
        """Where its next row begins: after what it has cached, or after what it copies first."""
        return self.shared if self.donor is not None and not self.waits_for_donor else self.cached

    def prefill_left(self) -> int:
        """Committed tokens to cache before a round's row, which feeds the last one itself."""
        return len(self.tokens) - 1 - self.start

    @property
    def is_runnable(self) -> bool:
        """Whether a pass could do something for it."""
        return not self.waits_for_donor and (self.pending is not None or self.prefill_left() > 0)

    def round_input(self) -> RoundInput:
        """The pending round as verification takes it."""
        assert self.pending is not None
        intake = self.pending.intake
        return RoundInput(
            params=self.params,
            prompt_ids=self.prompt_ids,
            output_ids=self.output_ids,
            key=self.request_key,
            block_start=len(self.tokens),
            tokens=intake.tokens,
            qs=intake.qs,
            tree=intake.tree,
            trace_top=self.trace_top,
            logprobs=self.params.logprobs,
            audited=self.pending.audited,
        )

    def turn(self, weights_version: int, weights_sha256: bytes) -> None:
        """Goes on under other weights from what is committed. A block that waits is verified under them: its proposals
        are draws from their q whatever p is. What has not begun gets the key that belongs to the new version."""
        self.weights_version, self.weights_sha256 = weights_version, weights_sha256
        self.cached, self.donor = 0, None
        if self.state is State.QUEUED and not self.continues:
            self.request_key = new_key(self.params.seed, self.prompt_ids, self.sample_index, weights_version)
        self.turned = self.state is State.ACTIVE

    @property
    def is_waited_for(self) -> bool:
        """Whether its next step is the peer's."""
        return self.pending is None and not self.in_flight and self.state is not State.QUEUED

    def opening(self) -> target_pb2.VerifyResponse:
        """The frame that tells the peer that it has its slot."""
        opened = target_pb2.SessionOpened(
            request_key=self.request_key,
            weights_version=self.weights_version,
            weights_sha256=self.weights_sha256,
            max_new_tokens=self.max_new,
        )
        return target_pb2.VerifyResponse(session=self.key[1], epoch=self.epoch, opened=opened)

    def answer(
        self, result: RoundResult, queue_until_ns: int, forward_ns: int, verify_ns: int
    ) -> target_pb2.VerifyResponse:
        """Commits the pending round; the frame that says so, kept in case the peer asks again.

        Args:
            result: what verification found.
            queue_until_ns: monotonic time at which the pass began.
            forward_ns: how long its model took.
            verify_ns: and its verification.
        """
        pending = self.pending
        assert pending is not None
        verdict = self.commit(result)
        verdict.unaided = 0 if verdict.finish_reason else pending.unaided
        verdict.timings.queue_ns = max(0, queue_until_ns - pending.arrived_ns)
        verdict.timings.forward_ns = forward_ns
        verdict.timings.verify_ns = verify_ns
        self.pending = None
        self.last_verdict = target_pb2.VerifyResponse(
            session=self.key[1], epoch=self.epoch, round=pending.number, verdict=verdict
        )
        return self.last_verdict

    def commit(self, result: RoundResult) -> verdict_pb2.Verdict:
        """Commits a round's tokens up to the first stop; nothing after it is emitted, cached or counted (G1)."""
        assert self.pending is not None
        intake = self.pending.intake
        self.lossless = self.lossless and intake.lossless
        before = len(self.tokens)
        candidates = [*(intake.tokens[node - 1] for node in result.path), result.next_id]
        counted = self._reach() if self.params.rule is Rule.BLOCK else None
        verdict = verdict_pb2.Verdict(
            lossless=self.lossless, weights_sha256=self.weights_sha256 if self.turned else b""
        )
        self.turned = False
        for index, token_id in enumerate(candidates):
            token = verdict.tokens.add(id=token_id, source=_source(index, result), weights_version=self.weights_version)
            if index < len(result.losses):
                token.loss = result.losses[index]
            if result.logprobs:
                token.logprobs.CopyFrom(to_logprobs(result.logprobs[index]))
            if result.records:
                token.trace.CopyFrom(to_trace(result.records[index]))
            self.tokens.append(token_id)
            self.output_ids.append(token_id)
            self.max_new -= 1
            step = self.text.push(token_id)
            token.text = step.text
            if step.stopped or token_id in self.stop_ids:
                verdict.finish_reason = verdict_pb2.FINISH_REASON_STOP
            elif self.max_new == 0:
                verdict.finish_reason = verdict_pb2.FINISH_REASON_LENGTH
            if verdict.finish_reason:
                if not step.stopped:
                    token.text += self.text.flush()
                if self.text.stopped:
                    # text held back until now may hold a stop string; it wins over the length
                    verdict.finish_reason = verdict_pb2.FINISH_REASON_STOP
                break
        emitted = len(verdict.tokens)
        verdict.accepted = min(result.accepted, emitted)
        whole = emitted == len(candidates)
        if result.climb is not None:
            verdict.widths.extend(result.climb.widths[: None if whole else emitted])
        verdict.examined = sum(verdict.widths) or (result.examined if whole else emitted)
        verdict.expected_accepted = sum(result.overlaps[: emitted if counted is None else counted])
        self.cached = min(before + result.accepted, len(self.tokens))
        if intake.refusal is not None:
            verdict.refusal.offset = intake.refusal.offset
            verdict.refusal.kind = _REFUSAL[intake.refusal.kind]
            verdict.refusal.message = intake.refusal.message
        return verdict

    def _reach(self) -> int:
        """How many of the pending proposals can be emitted: those behind a stop can't, whatever the verdict."""
        assert self.pending is not None
        tokens = self.pending.intake.tokens
        text = self.text.fork() if self.params.stop else None
        for count, token in enumerate(tokens, 1):
            if token in self.stop_ids or (text is not None and text.push(token).stopped):
                return count
        return len(tokens)


def new_key(seed: int | None, prompt_ids: Sequence[int], sample_index: int, weights_version: int) -> bytes:
    """The key of a request that brings none: of its own where it has a seed, else a fresh one."""
    if seed is None:
        return rng.fresh_key()
    return rng.derive_key(seed, prompt_ids, sample_index, weights_version)


def _source(index: int, result: RoundResult) -> verdict_pb2.TokenSource:
    if index < result.accepted:
        return verdict_pb2.TOKEN_SOURCE_ACCEPTED
    if result.rejected:
        return verdict_pb2.TOKEN_SOURCE_RESAMPLED
    return verdict_pb2.TOKEN_SOURCE_BONUS if result.examined else verdict_pb2.TOKEN_SOURCE_TARGET
