"""The target's own generations: sessions of this process that never propose anything."""

from __future__ import annotations

import asyncio
import itertools

from draftproof.errors import OverloadedError, PrefixLostError
from draftproof.v1 import fingerprint_pb2, target_pb2, verdict_pb2
from draftproof.wire import error as wire_error
from target_service.verifier import Verifier


class LocalPort:
    """A verify port onto the verifier of this process."""

    def __init__(self, verifier: Verifier, fingerprint: fingerprint_pb2.Fingerprint) -> None:
        self._verifier = verifier
        self._fingerprint = fingerprint
        self._ids = itertools.count(1)

    @property
    def addresses(self) -> list[str]:
        """No other process is involved."""
        return []

    @property
    def waiting(self) -> int:
        """Sessions that wait for a KV slot."""
        return self._verifier.waiting

    @property
    def max_gamma(self) -> int:
        """Largest gamma a block may have."""
        return self._verifier.config.max_gamma

    @property
    def max_unaided(self) -> int:
        """Most rounds without proposals that run unasked."""
        return self._verifier.config.max_unaided

    @property
    def max_context(self) -> int:
        """Largest context in tokens."""
        return self._verifier.max_context

    def fingerprint(self) -> fingerprint_pb2.Fingerprint:
        """The target's identity."""
        return self._fingerprint

    async def open(self, request: target_pb2.OpenSession) -> LocalSession:
        """Waits for a KV slot."""
        session = LocalSession(self._verifier, self, next(self._ids), request)
        try:
            session.opened = await session.open()
            session.weights = session.opened.weights_sha256
        except BaseException:
            await session.close()
            raise
        # from here on the session keeps its key, whichever slot it has
        request.request_key = session.opened.request_key
        return session


class LocalSession:
    """One session of this process."""

    opened: target_pb2.SessionOpened
    weights: bytes

    def __init__(self, verifier: Verifier, owner: LocalPort, session_id: int, request: target_pb2.OpenSession) -> None:
        self._verifier = verifier
        self._owner = owner
        self._id = session_id
        self._request = request
        self._epoch = 0
        self._round = 0
        self._unaided = 0
        self._frames: asyncio.Queue[target_pb2.VerifyResponse] = asyncio.Queue()

    async def open(self) -> target_pb2.SessionOpened:
        """Opens the session, or a new epoch of it."""
        self._epoch += 1
        self._unaided = 0
        self._verifier.open(self._owner, self._id, self._epoch, self._request, self._frames.put_nowait)
        return (await self._next()).opened

    async def verify(self, block: target_pb2.Block) -> verdict_pb2.Verdict:
        """Runs one round; a slot that was lost to a waiting session is asked for again."""
        self._round += 1
        while True:
            try:
                if self._frames.empty() and not self._unaided:
                    self._verifier.block(self._owner, self._id, self._epoch, self._round, block)
                verdict = (await self._next()).verdict
            except PrefixLostError:
                await self._reopen()
                continue
            self._unaided = verdict.unaided
            self._request.output_ids.extend(token.id for token in verdict.tokens)
            now = verdict.weights_sha256 or self.opened.weights_sha256
            if now != self.weights:
                # the slot was lost, and with it the old weights
                verdict.weights_sha256 = self.weights = self.opened.weights_sha256 = now
            return verdict

    def halt(self) -> None:
        """Asks for no more rounds unasked."""
        self._verifier.halt(self._owner, self._id, self._epoch)

    async def close(self) -> None:
        """Frees the session."""
        self._verifier.close(self._owner, self._id, self._epoch)

    async def _reopen(self) -> None:
        while True:
            try:
                self.opened.weights_sha256 = (await self.open()).weights_sha256
                return
            except OverloadedError as error:
                await asyncio.sleep(error.retry_delay or 0.1)

    async def _next(self) -> target_pb2.VerifyResponse:
        frame = await self._frames.get()
        if frame.WhichOneof("frame") == "error":
            raise wire_error.from_proto(frame.error)
        return frame
