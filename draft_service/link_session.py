"""One session on the link: rounds that survive a lost stream, an evicted prefix or a repeated verdict."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from draftproof.errors import OverloadedError, PeerUnavailableError, PrefixLostError, ProtocolError
from draftproof.v1 import target_pb2, verdict_pb2
from draftproof.wire import error as wire_error

if TYPE_CHECKING:
    from draft_service.link import TargetLink


MAX_LOSSES = 5
"""Streams lost in a row over one round: the round itself may be what brings them down."""


class _ConnectionLost(Exception):
    """The stream ended while the session waited for an answer."""


class LinkSession:
    """A verify session over the link. Not reentrant: one call at a time.

    The same round with the same key gives the same verdict, so re-sending the prefix and the block after a failure
    loses nothing and says nothing twice (P1).
    """

    def __init__(self, link: TargetLink, session_id: int, request: target_pb2.OpenSession) -> None:
        self.id = session_id
        self.epoch = 0
        self.opened = target_pb2.SessionOpened()
        self._link = link
        self._request = request
        self._round = 0
        # rounds whose verdicts are due without another block, and those of them that nobody has asked for yet
        self._due = range(0)
        self._early: deque[target_pb2.VerifyResponse] = deque()
        self._halted = False
        self._answer: asyncio.Future[target_pb2.VerifyResponse] | None = None
        self._lost: Exception | None = None
        self._losses = 0
        self._weights = b""

    async def open(self) -> None:
        """Waits for a slot on the target.

        Raises:
            RequestError: refused.
        """
        try:
            self.opened = await self._open()
        except _ConnectionLost:
            raise self._link.unavailable() from None
        self._weights = self.opened.weights_sha256
        # from here on the session keeps its key, whoever verifies it
        self._request.request_key = self.opened.request_key

    async def verify(self, block: target_pb2.Block) -> verdict_pb2.Verdict:
        """Verifies a block, on a new stream or slot if the old one is lost.

        Raises:
            RequestError: the session failed, or the stream was lost too often over this round.
        """
        self._round += 1
        self._losses = 0
        while True:
            try:
                if self._early:
                    answer = self._early.popleft()
                elif self._due:
                    answer = await self._exchange(None)
                else:
                    self._due, self._halted = range(self._round, self._round + 1), False
                    answer = await self._exchange(self._frame(self._round, block=block))
            except _ConnectionLost:
                self._count_loss()
                await self._reopen()
                continue
            except PrefixLostError:
                await self._reopen()
                continue
            verdict = answer.verdict
            if not verdict.tokens:
                raise ProtocolError("the target's verdict commits no token")
            self._request.output_ids.extend(token.id for token in verdict.tokens)
            self._tell_weights(verdict)
            return verdict

    def _tell_weights(self, verdict: verdict_pb2.Verdict) -> None:
        """A slot that was lost and found again may be another set of weights' by now."""
        now = verdict.weights_sha256 or self.opened.weights_sha256
        if now != self._weights:
            verdict.weights_sha256 = self._weights = self.opened.weights_sha256 = now

    def halt(self) -> None:
        """Asks for no more rounds unasked; where the stream is down there are none."""
        if self._due and not self._halted:
            self._halted = True
            with suppress(PeerUnavailableError):
                self._link.send(self._frame(self._round, halt=target_pb2.Halt()))

    async def close(self) -> None:
        """Frees the session."""
        self._link.forget(self)

    def receive(self, frame: target_pb2.VerifyResponse) -> None:
        """Takes a frame from the link; what answers an older epoch or round is dropped."""
        if frame.epoch != self.epoch:
            return
        kind = frame.WhichOneof("frame")
        if kind == "error":
            self._settle(wire_error.from_proto(frame.error))
            return
        if kind == "verdict":
            if not self._due or frame.round != self._due[0]:
                return
            self._due = range(frame.round + 1, frame.round + 1 + frame.verdict.unaided)
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(frame)
        elif kind == "verdict":
            self._early.append(frame)

    def connection_lost(self) -> None:
        """The stream is gone, and the session on the target with it."""
        self._settle(_ConnectionLost())

    def _settle(self, error: Exception) -> None:
        self._due = range(0)
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
        elif self._lost is None:
            # the first word counts: a target that hands sessions back ends the stream right after
            self._lost = error

    async def _reopen(self) -> None:
        """Opens a new epoch from the committed prefix; waits out a full queue, since the session is running."""
        while True:
            await self._link.wait_up()
            try:
                self.opened.weights_sha256 = (await self._open()).weights_sha256
                return
            except _ConnectionLost:
                self._count_loss()
            except OverloadedError as error:
                await asyncio.sleep(error.retry_delay or 0.1)

    def _count_loss(self) -> None:
        self._losses += 1
        if self._losses > MAX_LOSSES:
            raise PeerUnavailableError(f"the stream to the target was lost {self._losses} times over one round")

    async def _open(self) -> target_pb2.SessionOpened:
        self.epoch += 1
        self._lost = None
        self._due = range(0)
        opened = (await self._exchange(self._frame(0, open=self._request))).opened
        self._link.learn(opened)
        return opened

    async def _exchange(self, frame: target_pb2.VerifyRequest | None) -> target_pb2.VerifyResponse:
        if self._lost is not None:
            error, self._lost = self._lost, None
            raise error
        self._answer = asyncio.get_running_loop().create_future()
        try:
            if frame is not None:
                self._link.send(frame)
            return await self._answer
        finally:
            self._answer = None

    def _frame(
        self,
        number: int,
        *,
        open: target_pb2.OpenSession | None = None,
        block: target_pb2.Block | None = None,
        halt: target_pb2.Halt | None = None,
    ) -> target_pb2.VerifyRequest:
        return target_pb2.VerifyRequest(
            session=self.id, epoch=self.epoch, round=number, open=open, block=block, halt=halt
        )
