"""GenerationService, the one face of every server: the loop of draft, verify, commit, stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass

import grpc.aio
import structlog

from draftproof.engine.interface import Tokenizer
from draftproof.errors import DrainingError, InvalidArgumentError, OverloadedError
from draftproof.rpc.options import check_size
from draftproof.sampling.params import SamplingParams
from draftproof.serving import prompt
from draftproof.serving.drafting import Drafting, DraftSequence, Proposal
from draftproof.serving.ports import VerifyPort, VerifySession
from draftproof.serving.statistics import StatsBuilder
from draftproof.v1 import fingerprint_pb2, generation_pb2, generation_pb2_grpc, target_pb2
from draftproof.version import VERSION
from draftproof.wire import params as wire_params
from draftproof.wire.distribution import encode

log = structlog.get_logger(__name__)

RETRY_SECONDS = 0.5
HAND_BACK_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """Settings of a generation face.

    Attributes:
        role: "draft" or "target".
        default_gamma: proposals per round where a request doesn't say.
        max_sessions: requests running at once; one more is refused at once.
        slots: sessions that hold a KV slot at once, for information.
        max_message_bytes: largest message of the server.
    """

    role: str
    default_gamma: int
    max_sessions: int
    slots: int
    max_message_bytes: int


class GenerationServicer(generation_pb2_grpc.GenerationServiceServicer):
    """Serves Generate over any verify port and drafter."""

    def __init__(
        self,
        port: VerifyPort,
        drafting: Drafting,
        tokenizer: Tokenizer,
        config: GenerationConfig,
        draft_fingerprint: fingerprint_pb2.Fingerprint | None = None,
    ) -> None:
        self._port = port
        self._drafting = drafting
        self._tokenizer = tokenizer
        self._config = config
        self._draft_fingerprint = draft_fingerprint
        self._running = 0
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
            log.info("handing back", sessions=self._running)
            try:
                await asyncio.wait_for(self._idle.wait(), HAND_BACK_SECONDS)
            except TimeoutError:
                # a client that doesn't read must not hold up the process
                log.warning("not handed back in time", sessions=self._running)

    async def GetServerInfo(
        self,
        request: generation_pb2.GetServerInfoRequest,
        context: grpc.aio.ServicerContext[generation_pb2.GetServerInfoRequest, generation_pb2.GetServerInfoResponse],
    ) -> generation_pb2.GetServerInfoResponse:
        """Describes this server."""
        return generation_pb2.GetServerInfoResponse(
            role=self._config.role,
            version=VERSION,
            target=self._port.fingerprint(),
            draft=self._draft_fingerprint,
            drafter=self._drafting.name,
            max_context=self._port.max_context,
            slots=self._config.slots,
            max_gamma=self._port.max_gamma,
            default_gamma=self._config.default_gamma,
            max_message_bytes=self._config.max_message_bytes,
            sessions=self._running,
            chat_template=self._tokenizer.has_chat_template,
            targets=self._port.addresses,
        )

    async def Generate(
        self,
        request: generation_pb2.GenerateRequest,
        context: grpc.aio.ServicerContext[generation_pb2.GenerateRequest, generation_pb2.GenerateResponse],
    ) -> AsyncIterator[generation_pb2.GenerateResponse]:
        """Streams one continuation."""
        if self._draining:
            raise DrainingError("the server is shutting down", retry_delay=RETRY_SECONDS)
        if self._running >= self._config.max_sessions:
            raise OverloadedError(
                f"{self._running} requests are running, the limit is {self._config.max_sessions} (max_sessions)",
                metadata={"setting": "max_sessions", "limit": str(self._config.max_sessions)},
                retry_delay=RETRY_SECONDS,
            )
        self._running += 1
        self._idle.clear()
        try:
            async with aclosing(self._generate(request)) as events:
                async for event in events:
                    yield event
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    async def _generate(
        self, request: generation_pb2.GenerateRequest
    ) -> AsyncGenerator[generation_pb2.GenerateResponse, None]:
        started_ns = time.monotonic_ns()
        prompt.check_request(request)
        params = wire_params.from_proto(request.sampling)
        gamma = self._gamma(params)
        ids = prompt.prompt_ids(request, self._tokenizer)
        prompt.room(len(ids) + len(request.resume.output_ids), self._port.max_context, None)
        opening = target_pb2.OpenSession(
            prompt_ids=ids,
            output_ids=request.resume.output_ids,
            sampling=request.sampling,
            request_key=request.resume.request_key,
            sample_index=request.sample_index,
            trace=request.trace if request.HasField("trace") else None,
            request_id=request.request_id,
        )
        session = await self._port.open(opening)
        key = session.opened.request_key
        sequence = DraftSequence(ids, params, key, list(request.resume.output_ids))
        try:
            yield generation_pb2.GenerateResponse(
                started=generation_pb2.Started(
                    prompt_ids=ids,
                    request_key=key,
                    gamma=gamma,
                    target_model=self._port.fingerprint().model,
                    drafter=self._drafting.name,
                    weights_version=session.opened.weights_version,
                )
            )
            async with aclosing(self._rounds(session, sequence, gamma, started_ns)) as events:
                async for event in events:
                    yield event
        finally:
            self._drafting.release(sequence)
            await session.close()

    async def _rounds(
        self, session: VerifySession, sequence: DraftSequence, gamma: int, started_ns: int
    ) -> AsyncGenerator[generation_pb2.GenerateResponse, None]:
        builder = StatsBuilder(started_ns)
        left = session.opened.max_new_tokens
        while True:
            if self._hand_back.is_set():
                yield handed_back(sequence)
                return
            drafting_ns = time.monotonic_ns()
            # the bonus token fills the last place, so a longer block could only be thrown away
            proposals = await self._drafting.propose(sequence, min(gamma, left - 1)) if gamma else []
            sent_ns = time.monotonic_ns()
            block = to_block(sequence.position, proposals, sent_ns - drafting_ns)
            try:
                verdict = await session.verify(block)
            except DrainingError:
                yield handed_back(sequence)
                return
            now_ns = time.monotonic_ns()
            builder.add(
                verdict,
                draft_ns=sent_ns - drafting_ns,
                round_trip_ns=now_ns - sent_ns,
                proposal_bytes=block.ByteSize() if proposals else 0,
                now_ns=now_ns,
            )
            sequence.output_ids.extend(token.id for token in verdict.tokens)
            left -= len(verdict.tokens)
            chunk = generation_pb2.GenerateResponse(
                chunk=generation_pb2.Chunk(tokens=verdict.tokens, examined=verdict.examined, accepted=verdict.accepted)
            )
            check_size(chunk, self._config.max_message_bytes)
            yield chunk
            if verdict.finish_reason:
                yield generation_pb2.GenerateResponse(
                    finished=generation_pb2.Finished(
                        finish_reason=verdict.finish_reason,
                        usage=builder.usage(len(sequence.prompt_ids)),
                        stats=builder.stats,
                        lossless=builder.lossless,
                    )
                )
                return

    def _gamma(self, params: SamplingParams) -> int:
        if not self._drafting.name:
            return 0
        if params.gamma is None:
            return min(self._config.default_gamma, self._port.max_gamma)
        if params.gamma > self._port.max_gamma:
            raise InvalidArgumentError.of("gamma", f"at most {self._port.max_gamma} on this server", params.gamma)
        return params.gamma


def to_block(start: int, proposals: list[Proposal], draft_ns: int) -> target_pb2.Block:
    """The wire form of one block."""
    return target_pb2.Block(
        start=start,
        proposals=[target_pb2.Proposal(token_id=p.token_id, q=encode(p.q)) for p in proposals],
        draft_ns=draft_ns,
    )


def handed_back(sequence: DraftSequence) -> generation_pb2.GenerateResponse:
    """The event that lets the caller go on elsewhere."""
    return generation_pb2.GenerateResponse(
        handed_back=generation_pb2.Resume(request_key=sequence.key, output_ids=sequence.output_ids)
    )
