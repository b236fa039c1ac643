"""The long-lived stream to a target, shared by all sessions: handshake, frames in and out, reconnection."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import grpc.aio
import structlog

from draft_service.link_session import LinkSession
from draftproof.errors import DrainingError, FingerprintMismatchError, PeerUnavailableError, RequestError
from draftproof.rpc.options import check_size
from draftproof.rpc.status import from_rpc_error
from draftproof.v1 import fingerprint_pb2, target_pb2, target_pb2_grpc
from draftproof.wire import fingerprint as wire_fingerprint

log = structlog.get_logger(__name__)

_FIRST_DELAY = 0.05
VerifyCall = grpc.aio.StreamStreamCall[target_pb2.VerifyRequest, target_pb2.VerifyResponse]


@dataclass(frozen=True, slots=True)
class LinkConfig:
    """Settings of a link.

    Attributes:
        connect_timeout: seconds a new session waits for the first stream.
        reconnect_timeout: seconds a running session waits for the stream to come back before it fails.
        outbox_limit: most frames that wait to be sent.
    """

    connect_timeout: float = 5.0
    reconnect_timeout: float = 1.0
    outbox_limit: int = 4096


class TargetLink:
    """Keeps one stream to one target open and hands its frames to the sessions.

    Args:
        address: for messages.
        channel: to the target; closed with the link.
        max_message_bytes: largest message of the channel.
        fingerprint: ours.
        digests: gives 4 bytes per token when the target asks which one differs.
        on_ready: told when the link comes up or goes down.
    """

    def __init__(
        self,
        address: str,
        channel: grpc.aio.Channel,
        max_message_bytes: int,
        fingerprint: fingerprint_pb2.Fingerprint,
        drafter: str,
        digests: Callable[[], bytes],
        on_ready: Callable[[bool], None],
        config: LinkConfig | None = None,
    ) -> None:
        self.addresses = [address]
        self.config = config or LinkConfig()
        self._channel = channel
        self._max_message_bytes = max_message_bytes
        self._hello = target_pb2.Hello(fingerprint=fingerprint, drafter=drafter, max_message_bytes=max_message_bytes)
        self._digests = digests
        self._on_ready = on_ready
        self._ids = itertools.count(1)
        self._sessions: dict[int, LinkSession] = {}
        self._outbox: asyncio.Queue[target_pb2.VerifyRequest] = asyncio.Queue(self.config.outbox_limit)
        self._up = asyncio.Event()
        self._failed = asyncio.Event()
        self._welcome: target_pb2.Welcome | None = None
        self._refusal: FingerprintMismatchError | None = None
        self._problem = "not connected yet"

    # -- VerifyPort ----------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Not known here."""
        return 0

    @property
    def max_gamma(self) -> int:
        """Largest gamma the target takes."""
        return self._known().max_gamma

    @property
    def max_unaided(self) -> int:
        """Most rounds without proposals that the target runs unasked."""
        return self._known().max_unaided

    @property
    def max_context(self) -> int:
        """Largest context of the target in tokens."""
        return self._known().max_context

    def fingerprint(self) -> fingerprint_pb2.Fingerprint:
        """The target's identity."""
        return self._known().fingerprint

    async def open(self, request: target_pb2.OpenSession) -> LinkSession:
        """Opens a session once the target has a slot for it.

        Raises:
            RequestError: refused, or the target can't be reached.
        """
        await self.first_up()
        session = LinkSession(self, next(self._ids), request)
        self._sessions[session.id] = session
        try:
            await session.open()
        except BaseException:
            await session.close()
            raise
        return session

    # -- for sessions --------------------------------------------------------------------------------------------

    async def wait_up(self) -> None:
        """Waits for the stream.

        Raises:
            PeerUnavailableError: it did not come up within `reconnect_timeout`.
        """
        try:
            await asyncio.wait_for(self._up.wait(), self.config.reconnect_timeout)
        except TimeoutError:
            raise self.unavailable() from None

    async def first_up(self) -> None:
        """Waits for a stream that is being made, but not for a target that has just failed to answer.

        Raises:
            RequestError: the target can't be reached, or doesn't fit.
        """
        if not self._failed.is_set() and not self._up.is_set():
            waits = [asyncio.create_task(event.wait()) for event in (self._up, self._failed)]
            try:
                await asyncio.wait(waits, timeout=self.config.connect_timeout, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
        if self._refusal is not None:
            raise self._refusal
        await self.wait_up()

    def refuse(self, error: FingerprintMismatchError) -> None:
        """The models don't fit: whoever still asks is told so."""
        self._refusal = error
        self._failed.set()

    def unavailable(self) -> RequestError:
        """The error for a target that can't be reached."""
        if self._refusal is not None:
            return self._refusal
        return PeerUnavailableError(
            f"the target at {self.addresses[0]} can't be reached: {self._problem}",
            metadata={"target": self.addresses[0]},
            retry_delay=0.5,
        )

    def send(self, frame: target_pb2.VerifyRequest) -> None:
        """Queues a frame on the stream.

        Raises:
            MessageTooLargeError: the target would not take it.
            PeerUnavailableError: the stream is down, or so slow that its outbox is full.
        """
        if not self._up.is_set():
            raise self.unavailable()
        check_size(frame, min(self._max_message_bytes, self._known().max_message_bytes))
        try:
            self._outbox.put_nowait(frame)
        except asyncio.QueueFull:
            raise self.unavailable() from None

    def learn(self, opened: target_pb2.SessionOpened) -> None:
        """The target's weights may have changed since the handshake."""
        ours = self._known().fingerprint
        ours.weights_version, ours.weights_sha256 = opened.weights_version, opened.weights_sha256

    def forget(self, session: LinkSession) -> None:
        """Drops a session; frees it on the target where the stream is up."""
        if self._sessions.pop(session.id, None) is None or not self._up.is_set():
            return
        close = target_pb2.VerifyRequest(session=session.id, epoch=session.epoch, close=target_pb2.CloseSession())
        try:
            self._outbox.put_nowait(close)
        except asyncio.QueueFull:
            log.warning("outbox full: the target frees the session by its idle timeout", session=session.id)

    # -- the stream ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keeps the stream open; ends by cancellation, or raises where trying again can't help.

        Raises:
            FingerprintMismatchError: the models don't fit.
        """
        delay = _FIRST_DELAY
        try:
            while True:
                draining = False
                try:
                    await self._serve_stream()
                except grpc.aio.AioRpcError as error:
                    typed = from_rpc_error(error)
                    if isinstance(typed, FingerprintMismatchError):
                        raise typed from None
                    problem, draining = typed.message, isinstance(typed, DrainingError)
                except (PeerUnavailableError, asyncio.InvalidStateError) as error:
                    # InvalidStateError: gRPC's word for writing to a call that has ended
                    problem = str(error)
                if self._down(problem, expected=draining):
                    delay = _FIRST_DELAY
                self._failed.set()
                await asyncio.sleep(delay)
                delay = min(2 * delay, 1.0)
        finally:
            self._down("this server is shutting down", expected=True)
            await self._channel.close()

    async def _serve_stream(self) -> NoReturn:
        stub = target_pb2_grpc.TargetServiceStub(self._channel)
        call: VerifyCall = stub.Verify()
        try:
            await self._handshake(call)
            self._outbox = asyncio.Queue(self.config.outbox_limit)
            self._up.set()
            self._failed.clear()
            self._on_ready(True)
            log.info("target connected", target=self.addresses[0], model=self._known().fingerprint.model)
            await self._pump(call)
        finally:
            call.cancel()

    async def _handshake(self, call: VerifyCall) -> None:
        await call.write(target_pb2.VerifyRequest(hello=self._hello))
        answer = await self._read(call)
        if answer.WhichOneof("frame") == "token_digests_query":
            digests = target_pb2.TokenDigests(digests=self._digests())
            await call.write(target_pb2.VerifyRequest(token_digests=digests))
            answer = await self._read(call)
        wire_fingerprint.check(self._hello.fingerprint, answer.welcome.fingerprint)
        self._welcome = answer.welcome

    async def _read(self, call: VerifyCall) -> target_pb2.VerifyResponse:
        frame = await call.read()
        if not isinstance(frame, target_pb2.VerifyResponse):
            raise PeerUnavailableError("the target closed the stream")
        return frame

    async def _pump(self, call: VerifyCall) -> NoReturn:
        reader = asyncio.create_task(self._reader(call))
        writer = asyncio.create_task(self._writer(call))
        try:
            done, _ = await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            raise AssertionError("unreachable: both loops end by an error alone")
        finally:
            reader.cancel()
            writer.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)

    async def _reader(self, call: VerifyCall) -> NoReturn:
        while True:
            frame = await self._read(call)
            session = self._sessions.get(frame.session)
            if session is not None:
                session.receive(frame)

    async def _writer(self, call: VerifyCall) -> NoReturn:
        while True:
            await call.write(await self._outbox.get())

    def _down(self, problem: str, expected: bool = False) -> bool:
        """The stream is gone: wakes every session that waits on it. Returns whether it had been up."""
        news, self._problem = problem != self._problem, problem
        if not self._up.is_set():
            if news:
                log.warning("target can't be reached", target=self.addresses[0], problem=problem)
            return False
        self._up.clear()
        self._on_ready(False)
        (log.info if expected else log.warning)("target lost", target=self.addresses[0], problem=problem)
        for session in list(self._sessions.values()):
            session.connection_lost()
        return True

    def _known(self) -> target_pb2.Welcome:
        if self._welcome is None:
            raise self.unavailable()
        return self._welcome
