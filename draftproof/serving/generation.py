"""GenerationService, the one face of every server: the loop of draft, verify, commit, stream."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass
from typing import Protocol

import grpc.aio
import structlog

from draftproof.engine.interface import Tokenizer
from draftproof.errors import DrainingError, InvalidArgumentError, OverloadedError
from draftproof.rpc.options import check_size
from draftproof.sampling.params import Rule, SamplingParams
from draftproof.serving import ending, prompt
from draftproof.serving.ahead import AheadControl
from draftproof.serving.drafting import Drafting, DraftSequence, Outlook, Proposal
from draftproof.serving.experience import Experience
from draftproof.serving.gamma import FixedGamma, GammaControl, GammaLimits
from draftproof.serving.ports import VerifyPort, VerifySession
from draftproof.serving.statistics import StatsBuilder
from draftproof.v1 import fingerprint_pb2, generation_pb2, generation_pb2_grpc, target_pb2, verdict_pb2
from draftproof.version import VERSION
from draftproof.wire import params as wire_params
from draftproof.wire.distribution import encode

log = structlog.get_logger(__name__)

RETRY_SECONDS = 0.5
HAND_BACK_SECONDS = 5.0


RoundObserver = Callable[[target_pb2.Block, verdict_pb2.Verdict, int, int, int], None]
"""Told of every round: block, verdict, gamma asked for, nanoseconds of drafting and of the round trip."""


def no_observer(block: target_pb2.Block, verdict: verdict_pb2.Verdict, gamma: int, draft_ns: int, trip_ns: int) -> None:
    """Looks away."""


class Control(Protocol):
    """Who decides on gamma."""

    def running(self) -> AbstractContextManager[None]:
        """While a session goes by its word."""
        ...

    def choose(self, outlook: Outlook = Outlook.USUAL) -> int:
        """Proposals of the next block, which would be of this kind."""
        ...

    def rest(self, most: int) -> int:
        """Rounds without proposals that may follow one without proposals unasked, 0..most."""
        ...

    def wakes(self, outlook: Outlook) -> bool:
        """Whether a block of this kind is worth ending a rest for."""
        ...

    def learn(
        self, examined: int, accepted: int, draft_seconds: float, target_seconds: float, wire_seconds: float | None
    ) -> None:
        """Takes a round's outcome; `wire_seconds` is None in a round that came unasked."""
        ...


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """Settings of a generation face.

    Attributes:
        role: "draft" or "target".
        default_gamma: proposals per round where a request doesn't say.
        max_sessions: requests running at once; one more is refused at once.
        slots: sessions that hold a KV slot at once, for information.
        max_message_bytes: largest message of the server.
        adaptive: whether gamma follows what rounds show, where neither the request nor its seed fixes it.
        ahead: whether the next block is drafted while the verdict on one is out; None: where that saves time.
    """

    role: str
    default_gamma: int
    max_sessions: int
    slots: int
    max_message_bytes: int
    adaptive: bool = False
    ahead: bool | None = None


@dataclass(slots=True)
class _Pair:
    """What all sessions with one target have seen of it."""

    experience: Experience
    ahead: AheadControl


@dataclass(frozen=True, slots=True)
class _Plan:
    """What the next block should be."""

    gamma: int
    outlook: Outlook = Outlook.USUAL


class Generator:
    """Runs generations: refuses past its limits, drafts, has verified, commits, streams. Any port, one drafter."""

    def __init__(
        self,
        drafting: Drafting,
        tokenizer: Tokenizer,
        config: GenerationConfig,
        observe: RoundObserver = no_observer,
    ) -> None:
        self.drafting = drafting
        self.tokenizer = tokenizer
        self.config = config
        self.running = 0
        self._observe = observe
        self._pairs: dict[str, _Pair] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False
        self._hand_back = asyncio.Event()

    async def drain(self, grace: float) -> None:
        """Refuses new requests, lets running ones finish for `grace` seconds, then hands the rest back."""
        self._draining = True
        try:
            await asyncio.wait_for(self._idle.wait(), grace)
        except TimeoutError:
            self._hand_back.set()
            log.info("handing back", sessions=self.running)
            try:
                await asyncio.wait_for(self._idle.wait(), HAND_BACK_SECONDS)
            except TimeoutError:
                # a client that doesn't read must not hold up the process
                log.warning("not handed back in time", sessions=self.running)

    async def run(
        self, request: generation_pb2.GenerateRequest, port: VerifyPort
    ) -> AsyncGenerator[generation_pb2.GenerateResponse, None]:
        """Streams one continuation, verified through `port`.

        Raises:
            RequestError: refused or failed.
        """
        if self._draining:
            raise DrainingError("the server is shutting down", retry_delay=RETRY_SECONDS)
        limit = self.config.max_sessions
        if self.running >= limit:
            raise OverloadedError(
                f"{self.running} requests are running, the limit is {limit} (max_sessions)",
                metadata={"setting": "max_sessions", "limit": str(limit)},
                retry_delay=RETRY_SECONDS,
            )
        self.running += 1
        self._idle.clear()
        try:
            async with aclosing(self._generate(request, port)) as events:
                async for event in events:
                    yield event
        finally:
            self.running -= 1
            if not self.running:
                self._idle.set()

    async def _generate(
        self, request: generation_pb2.GenerateRequest, port: VerifyPort
    ) -> AsyncGenerator[generation_pb2.GenerateResponse, None]:
        started_ns = time.monotonic_ns()
        prompt.check_request(request)
        params = wire_params.from_proto(request.sampling)
        pair = self._pair(port)
        control = self._control(params, port, pair.experience)
        ids = prompt.prompt_ids(request, self.tokenizer)
        output_ids = request.resume.output_ids
        reason = ending.ended(params, self.tokenizer, len(ids), output_ids, port.max_context)
        if reason is not None:
            builder = StatsBuilder(started_ns)
            mine = port.fingerprint()
            weights = (mine.weights_version, mine.weights_sha256)
            yield self._started(ids, request.resume.request_key, control.choose(), port, weights, params.rule)
            yield finished(reason, builder, len(ids))
            return
        prompt.room(len(ids) + len(output_ids), port.max_context, None)
        opening = target_pb2.OpenSession(
            prompt_ids=ids,
            output_ids=output_ids,
            sampling=request.sampling,
            request_key=request.resume.request_key,
            sample_index=request.sample_index,
            trace=request.trace if request.HasField("trace") else None,
            request_id=request.request_id,
        )
        session = await port.open(opening)
        key = session.opened.request_key
        sequence = DraftSequence(ids, params, key, list(output_ids), port.max_gamma, port.max_context)
        try:
            weights = (session.opened.weights_version, session.opened.weights_sha256)
            plan = self._plan(control, sequence)
            yield self._started(ids, key, plan.gamma, port, weights, params.rule)
            rounds = self._rounds(session, sequence, control, pair.ahead, plan, port.max_unaided, started_ns)
            with control.running():
                async with aclosing(rounds) as events:
                    async for event in events:
                        yield event
        finally:
            self.drafting.release(sequence)
            await session.close()

    async def _rounds(
        self,
        session: VerifySession,
        sequence: DraftSequence,
        control: Control,
        whether: AheadControl,
        plan: _Plan,
        max_unaided: int,
        started_ns: int,
    ) -> AsyncGenerator[generation_pb2.GenerateResponse, None]:
        builder = StatsBuilder(started_ns)
        left = session.opened.max_new_tokens
        before: tuple[int, bool, int] | None = None
        unaided = 0
        while True:
            if self._hand_back.is_set():
                yield handed_back(sequence)
                return
            drafting_ns = time.monotonic_ns()
            unasked = unaided > 0
            if unasked:
                unaided -= 1
            elif not plan.gamma:
                unaided = control.rest(min(max_unaided, left - 1))
            # the bonus token fills the last place, so a longer block could only be thrown away
            gamma = min(plan.gamma, left - 1)
            proposals = await self.drafting.propose(sequence, gamma) if gamma else []
            sent_ns = time.monotonic_ns()
            if before is not None:
                whether.learn(before[0], before[1], (before[2] + sent_ns - drafting_ns) / 1e9)
            block = to_block(sequence.position, proposals, sent_ns - drafting_ns, unaided)
            # verdicts on a tree are too many to guess at, and behind a copy comes another, in no time
            drafted = bool(proposals) and sequence.params.rule is not Rule.TREE and plan.outlook is Outlook.USUAL
            ahead = drafted and whether.choose()
            if ahead:
                # as long as this one; another length, and it is drawn anew
                self.drafting.ahead(sequence, proposals, plan.gamma, left)
            try:
                verdict = await session.verify(block)
            except DrainingError:
                yield handed_back(sequence)
                return
            now_ns = time.monotonic_ns()
            target = verdict.timings
            target_ns = target.queue_ns + target.forward_ns + target.verify_ns
            trip_ns = target_ns if unasked else now_ns - sent_ns
            builder.add(
                verdict,
                draft_ns=sent_ns - drafting_ns,
                round_trip_ns=trip_ns,
                proposal_bytes=sum(proposal.ByteSize() for proposal in block.proposals),
                now_ns=now_ns,
            )
            control.learn(
                verdict.examined,
                verdict.accepted,
                (sent_ns - drafting_ns) / 1e9,
                target_ns / 1e9,
                None if unasked else max(0, trip_ns - target_ns) / 1e9,
            )
            self._observe(block, verdict, gamma, sent_ns - drafting_ns, trip_ns)
            # the first cycle reads the prompt; one without proposals has nothing to gain
            before = (gamma, ahead, trip_ns) if drafted and builder.stats.rounds > 1 else None
            sequence.output_ids.extend(token.id for token in verdict.tokens)
            left -= len(verdict.tokens)
            unaided = verdict.unaided
            if unaided and control.wakes(self.drafting.outlook(sequence)):
                session.halt()
            chunk = generation_pb2.GenerateResponse(
                chunk=generation_pb2.Chunk(
                    tokens=verdict.tokens,
                    examined=verdict.examined,
                    accepted=verdict.accepted,
                    not_lossless=not verdict.lossless,
                    weights_sha256=verdict.weights_sha256,
                    widths=verdict.widths,
                )
            )
            check_size(chunk, self.config.max_message_bytes)
            yield chunk
            if verdict.finish_reason:
                yield finished(verdict.finish_reason, builder, len(sequence.prompt_ids))
                return
            if not unaided:
                plan = self._plan(control, sequence)

    def _plan(self, control: Control, sequence: DraftSequence) -> _Plan:
        outlook = self.drafting.outlook(sequence)
        return _Plan(control.choose(outlook), outlook)

    def _started(
        self,
        prompt_ids: Sequence[int],
        key: bytes,
        gamma: int,
        port: VerifyPort,
        weights: tuple[int, bytes],
        rule: Rule,
    ) -> generation_pb2.GenerateResponse:
        return generation_pb2.GenerateResponse(
            started=generation_pb2.Started(
                prompt_ids=prompt_ids,
                request_key=key,
                gamma=gamma,
                target_model=port.fingerprint().model,
                drafter=self.drafting.name,
                weights_version=weights[0],
                weights_sha256=weights[1],
                rule=wire_params.rule_number(rule),
            )
        )

    def _pair(self, port: VerifyPort) -> _Pair:
        name = ",".join(port.addresses)
        if name not in self._pairs:
            self._pairs[name] = _Pair(Experience(), AheadControl(self.config.ahead))
        return self._pairs[name]

    def _control(self, params: SamplingParams, port: VerifyPort, experience: Experience) -> Control:
        """Fixed where the request or its seed asks for it: where blocks end decides which draws are used (L9).

        Under the coupled rule a draw belongs to its position, wherever blocks end.
        """
        if params.gamma is not None and params.gamma > port.max_gamma:
            raise InvalidArgumentError.of("gamma", f"at most {port.max_gamma} on this server", params.gamma)
        if not self.drafting.name:
            return FixedGamma(0)
        first = min(self.config.default_gamma, port.max_gamma)
        if params.gamma is not None:
            return FixedGamma(params.gamma)
        # what is known of chains says nothing about a tree's depth
        if not self.config.adaptive or params.needs_same_blocks or params.rule is Rule.TREE:
            return FixedGamma(first)
        limits = GammaLimits(largest=port.max_gamma, first=first, unaided=port.max_unaided)
        return GammaControl(limits, experience, params.greedy)


class GenerationServicer(generation_pb2_grpc.GenerationServiceServicer):
    """GenerationService of one server and one port."""

    def __init__(
        self, generator: Generator, port: VerifyPort, draft_fingerprint: fingerprint_pb2.Fingerprint | None = None
    ) -> None:
        self._generator = generator
        self._port = port
        self._draft_fingerprint = draft_fingerprint
        self.metrics_port: int | None = None

    async def Generate(
        self,
        request: generation_pb2.GenerateRequest,
        context: grpc.aio.ServicerContext[generation_pb2.GenerateRequest, generation_pb2.GenerateResponse],
    ) -> AsyncIterator[generation_pb2.GenerateResponse]:
        """Streams one continuation."""
        async with aclosing(self._generator.run(request, self._port)) as events:
            async for event in events:
                yield event

    async def GetServerInfo(
        self,
        request: generation_pb2.GetServerInfoRequest,
        context: grpc.aio.ServicerContext[generation_pb2.GetServerInfoRequest, generation_pb2.GetServerInfoResponse],
    ) -> generation_pb2.GetServerInfoResponse:
        """Describes this server."""
        return generation_pb2.GetServerInfoResponse(
            role=self._generator.config.role,
            version=VERSION,
            target=self._port.fingerprint(),
            draft=self._draft_fingerprint,
            drafter=self._generator.drafting.name,
            max_context=self._port.max_context,
            slots=self._generator.config.slots,
            max_gamma=self._port.max_gamma,
            default_gamma=self._generator.config.default_gamma,
            max_message_bytes=self._generator.config.max_message_bytes,
            sessions=self._generator.running,
            chat_template=self._generator.tokenizer.has_chat_template,
            targets=self._port.addresses,
            waiting=self._port.waiting,
            pid=os.getpid(),
            metrics_port=self.metrics_port or 0,
        )


def to_block(start: int, proposals: list[Proposal], draft_ns: int, unaided: int = 0) -> target_pb2.Block:
    """The wire form of one block, and how many rounds without proposals follow it unasked."""
    qs = iter(encode([p.q for p in proposals if p.q is not None]))
    return target_pb2.Block(
        start=start,
        proposals=[
            target_pb2.Proposal(token_id=p.token_id, q=None if p.q is None else next(qs), parent=p.parent)
            for p in proposals
        ],
        draft_ns=draft_ns,
        unaided=unaided,
    )


def finished(
    reason: verdict_pb2.FinishReason, builder: StatsBuilder, prompt_tokens: int
) -> generation_pb2.GenerateResponse:
    """The last event."""
    return generation_pb2.GenerateResponse(
        finished=generation_pb2.Finished(
            finish_reason=reason,
            usage=builder.usage(prompt_tokens),
            stats=builder.stats,
            lossless=builder.lossless,
        )
    )


def handed_back(sequence: DraftSequence) -> generation_pb2.GenerateResponse:
    """The event that lets the caller go on elsewhere."""
    return generation_pb2.GenerateResponse(
        handed_back=generation_pb2.Resume(request_key=sequence.key, output_ids=sequence.output_ids)
    )
