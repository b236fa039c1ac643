"""TargetService.Verify: one stream per draft server, many sessions in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

import grpc.aio
import structlog

from draftproof.errors import (
    DeadlineExceededError,
    DrainingError,
    FingerprintMismatchError,
    MessageTooLargeError,
    OverloadedError,
    ProtocolError,
    RequestError,
)
from draftproof.metrics.target import TargetMetrics
from draftproof.rpc.options import check_size
from draftproof.v1 import fingerprint_pb2, target_pb2, target_pb2_grpc
from draftproof.wire import error as wire_error
from draftproof.wire import fingerprint as wire_fingerprint
from target_service.verifier import Verifier

log = structlog.get_logger(__name__)

_HANDSHAKE_SECONDS = 10.0
_FLUSH_SECONDS = 1.0
VerifyContext = grpc.aio.ServicerContext[target_pb2.VerifyRequest, target_pb2.VerifyResponse]


@dataclass(frozen=True, slots=True)
class Identity:
    """What the handshake compares.

    Attributes:
        fingerprint: ours.
        tokens: our vocabulary, to name the first token that differs.
    """

    fingerprint: fingerprint_pb2.Fingerprint
    tokens: Sequence[str]


class TargetServicer(target_pb2_grpc.TargetServiceServicer):
    """Turns frames into calls of the verifier and sends back what it delivers.

    Args:
        outbox_limit: most frames that wait for a peer that doesn't read; past it the stream is ended.
    """

    def __init__(
        self,
        verifier: Verifier,
        identity: Identity,
        metrics: TargetMetrics,
        max_message_bytes: int,
        outbox_limit: int = 4096,
    ) -> None:
        self._verifier = verifier
        self._identity = identity
        self._metrics = metrics
        self._max_message_bytes = max_message_bytes
        self._outbox_limit = outbox_limit
        self._ending = asyncio.Event()

    def end_streams(self) -> None:
        """Ends all streams once what was delivered is sent; for a drained server."""
        self._ending.set()

    async def Verify(self, request_iterator: AsyncIterator[target_pb2.VerifyRequest], context: VerifyContext) -> None:
        """Serves one draft until it half-closes, disconnects or breaks the protocol."""
        try:
            async with asyncio.timeout(_HANDSHAKE_SECONDS):
                hello = await self._handshake(request_iterator, context)
        except TimeoutError:
            raise DeadlineExceededError(f"no handshake within {_HANDSHAKE_SECONDS:g} s") from None
        drafter = hello.drafter
        log.info("draft connected", drafter=drafter, peer=context.peer())
        limit = min(self._max_message_bytes, hello.max_message_bytes or self._max_message_bytes)
        stream = _Stream(self._verifier, self._metrics, self._outbox_limit, limit, _name(drafter, context.peer()))
        loops = (stream.read(request_iterator), stream.write(context), stream.overflowed(), self._ended(stream))
        tasks = {asyncio.create_task(loop) for loop in loops}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self._verifier.close_owner(stream)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            log.info("draft disconnected", drafter=drafter, peer=context.peer())

    async def _ended(self, stream: _Stream) -> NoReturn:
        await self._ending.wait()
        with suppress(TimeoutError):
            await asyncio.wait_for(stream.flushed(), _FLUSH_SECONDS)
        raise DrainingError("the target is shutting down", retry_delay=1.0)

    async def _handshake(
        self, frames: AsyncIterator[target_pb2.VerifyRequest], context: VerifyContext
    ) -> target_pb2.Hello:
        """Agrees on the fingerprint before the first round (L8)."""
        first = await _next(frames)
        if first.WhichOneof("frame") != "hello":
            raise ProtocolError("the first frame of a stream must be hello")
        hello = first.hello
        ours = self._identity.fingerprint
        try:
            wire_fingerprint.check(ours, hello.fingerprint)
        except FingerprintMismatchError as error:
            log.warning("draft refused", drafter=hello.drafter, peer=context.peer(), problem=error.message)
            if error.metadata["field"] == "sampling_contract":
                raise
            await context.write(target_pb2.VerifyResponse(token_digests_query=target_pb2.TokenDigestsQuery()))
            digests = (await _next(frames)).token_digests.digests
            tokens = self._identity.tokens
            raise wire_fingerprint.token_mismatch(ours, hello.fingerprint, tokens, digests) from error
        await context.write(
            target_pb2.VerifyResponse(
                welcome=target_pb2.Welcome(
                    fingerprint=ours,
                    max_gamma=self._verifier.config.max_gamma,
                    max_context=self._verifier.max_context,
                    max_message_bytes=self._max_message_bytes,
                    max_unaided=self._verifier.config.max_unaided,
                )
            )
        )
        return hello


class _Stream:
    """One draft's stream; the owner of its sessions."""

    def __init__(
        self, verifier: Verifier, metrics: TargetMetrics, outbox_limit: int, max_message_bytes: int, drafter: str
    ) -> None:
        self._drafter = drafter
        self._max_message_bytes = max_message_bytes
        self._verifier = verifier
        self._metrics = metrics
        self._outbox: asyncio.Queue[target_pb2.VerifyResponse] = asyncio.Queue(outbox_limit)
        self._overflow = asyncio.Event()

    async def read(self, frames: AsyncIterator[target_pb2.VerifyRequest]) -> None:
        """Handles frames until the draft half-closes; the stream then ends and frees its sessions."""
        async for frame in frames:
            self._handle(frame)

    async def write(self, context: VerifyContext) -> NoReturn:
        """Sends what was delivered, in order."""
        while True:
            await context.write(await self._outbox.get())
            self._outbox.task_done()

    async def flushed(self) -> None:
        """Returns when all that was delivered is sent."""
        await self._outbox.join()

    async def overflowed(self) -> NoReturn:
        """Ends the stream of a draft that doesn't read.

        Raises:
            OverloadedError: the outbox is full.
        """
        await self._overflow.wait()
        raise OverloadedError("the draft does not read its verdicts", metadata={"setting": "outbox_limit"})

    def _deliver(self, frame: target_pb2.VerifyResponse) -> None:
        try:
            check_size(frame, self._max_message_bytes)
        except MessageTooLargeError as error:
            # one session's trace must not end the stream that others share
            frame = self._error(frame.session, frame.epoch, error)
            asyncio.get_running_loop().call_soon(self._verifier.close, self, frame.session, frame.epoch)
        try:
            self._outbox.put_nowait(frame)
        except asyncio.QueueFull:
            self._overflow.set()

    def _handle(self, frame: target_pb2.VerifyRequest) -> None:
        kind = frame.WhichOneof("frame")
        try:
            if kind == "block":
                self._verifier.block(self, frame.session, frame.epoch, frame.round, frame.block)
            elif kind == "open":
                self._verifier.open(self, frame.session, frame.epoch, frame.open, self._deliver, self._drafter)
            elif kind == "halt":
                self._verifier.halt(self, frame.session, frame.epoch)
            elif kind == "close":
                self._verifier.close(self, frame.session, frame.epoch)
            else:
                raise ProtocolError(f"frame {kind} is not allowed here")
        except RequestError as error:
            self._deliver(self._error(frame.session, frame.epoch, error))

    def _error(self, session: int, epoch: int, error: RequestError) -> target_pb2.VerifyResponse:
        self._metrics.failed(error.reason)
        return target_pb2.VerifyResponse(session=session, epoch=epoch, error=wire_error.to_proto(error))


async def _next(frames: AsyncIterator[target_pb2.VerifyRequest]) -> target_pb2.VerifyRequest:
    try:
        return await anext(frames)
    except StopAsyncIteration:
        raise ProtocolError("the stream ended before its handshake") from None


def _name(drafter: str, peer: str) -> str:
    """How the audit knows a draft: its name and host, "grpc:address:port" without the port."""
    host = peer.partition(":")[2].rpartition(":")[0] or peer
    return f"{drafter[:64] or 'unnamed'}@{host}"
