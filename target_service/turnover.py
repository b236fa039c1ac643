"""Other weights under running sessions: asked for on the event loop, done by the batching loop between two passes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import structlog

from draftproof.engine.interface import Update
from draftproof.errors import OverloadedError
from draftproof.serving.model_thread import ModelThread
from target_service.admission import Admission
from target_service.passes import bug
from target_service.session import Session, State

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Wanted:
    update: Update
    version: int
    restart: bool
    done: asyncio.Future[int] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Turnover:
    """The weights that a target computes with, and at most one change of them that waits.

    Args:
        sha256: tells the first weights from others.
        admission: holds new sessions back while old ones finish.
        thread: owns the engine.
        wake: wakes the batching loop.

    Attributes:
        version: of the weights, 0 at first.
        sha256: tells them from others.
        on_change: told version and SHA-256 of the new ones.
    """

    def __init__(self, sha256: bytes, admission: Admission, thread: ModelThread, wake: Callable[[], None]) -> None:
        self.version = 0
        self.sha256 = sha256
        self.on_change: Callable[[int, bytes], None] = lambda version, sha256: None
        self._admission = admission
        self._thread = thread
        self._wake = wake
        self._wanted: _Wanted | None = None

    async def change(self, update: Update, version: int, *, restart: bool) -> int:
        """Returns when the new weights are in use; how many sessions went on under them. A caller that leaves before
        then takes the change back.

        Raises:
            OverloadedError: another change waits.
        """
        if self._wanted is not None:
            raise OverloadedError("another weights update waits for its sessions to finish", retry_delay=1.0)
        wanted = self._wanted = _Wanted(update, version, restart)
        self._admission.holding = not restart
        self._wake()
        try:
            return await wanted.done
        finally:
            if self._wanted is wanted:
                self._wanted = None
                self._admission.holding = False
                self._wake()

    @property
    def waits(self) -> bool:
        """Whether a change is wanted."""
        return self._wanted is not None

    @property
    def due(self) -> bool:
        """Whether the batching loop should make the change now."""
        wanted = self._wanted
        return wanted is not None and not wanted.done.done() and (wanted.restart or self._admission.quiet)

    async def make(self, sessions: Iterable[Session]) -> None:
        """Makes the change; no pass is running.

        Args:
            sessions: all of the process.
        """
        wanted = self._wanted
        assert wanted is not None
        self._admission.forget()
        live = [s for s in sessions if s.state is not State.CLOSED]
        try:
            await self._thread.run(wanted.update.install)
        except Exception:
            # the old weights are still there or the process is beyond help; what slots hold is anyone's guess
            for session in live:
                session.cached = 0
            if not wanted.done.done():
                wanted.done.set_exception(bug("the weights could not be changed"))
            self._finish(wanted)
            return
        self.version, self.sha256 = wanted.version, wanted.update.sha256
        for session in live:
            session.turn(self.version, self.sha256)
        restarted = sum(session.turned for session in live)
        self.on_change(self.version, self.sha256)
        log.info("weights changed", version=self.version, sha256=self.sha256.hex()[:16], restarted=restarted)
        if not wanted.done.done():
            wanted.done.set_result(restarted)
        self._finish(wanted)

    def _finish(self, wanted: _Wanted) -> None:
        if self._wanted is wanted:
            self._wanted = None
            self._admission.holding = False
