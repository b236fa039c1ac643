"""A process's life: one line and exit code on a bad start, a drain on SIGTERM."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import structlog

from draftproof.errors import DraftproofError
from draftproof.serving import model_thread

log = structlog.get_logger(__name__)

PARENT = "DRAFTPROOF_PARENT"
"""Variable with the process that a service must not outlive; unset: it may outlive any."""
_PARENT_SECONDS = 1.0
_INTERRUPTED = 130


class App(Protocol):
    """A service that runs until it is told to stop."""

    async def start(self) -> None:
        """Begins to serve."""
        ...

    async def run(self) -> None:
        """Runs the service's loops; returns only by an error or cancellation."""
        ...

    async def drain(self) -> None:
        """Refuses new work, lets running work finish within the grace period, and stops serving."""
        ...

    async def close(self) -> None:
        """Stops serving at once."""
        ...


async def serve(app: App) -> None:
    """Runs an app until SIGTERM, SIGINT or its parent's death, then drains it. A second signal ends it at once.

    Raises:
        DraftproofError: it could not start, or could not go on.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, loop, stop, number)
    following = asyncio.create_task(_follow_parent(stop))
    await app.start()
    running = asyncio.create_task(app.run())
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            await app.close()
            running.result()
            return
        log.info("draining")
        await app.drain()
        log.info("stopped")
    finally:
        following.cancel()
        stopping.cancel()
        running.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await running


async def _follow_parent(stop: asyncio.Event) -> None:
    if parent := os.environ.get(PARENT):
        while os.getppid() == int(parent):  # noqa: ASYNC110
            await asyncio.sleep(_PARENT_SECONDS)
        log.warning("the process that started this one is gone")
        stop.set()


def _on_signal(loop: asyncio.AbstractEventLoop, stop: asyncio.Event, number: signal.Signals) -> None:
    loop.remove_signal_handler(number)
    stop.set()


def main(build: Callable[[], App]) -> None:
    """Builds and serves an app; a failure is one line on stderr and exit code 1, and so is a model that hangs."""
    code = 0
    try:
        asyncio.run(serve(build()))
    except DraftproofError as error:
        log.error("stopped by an error", problem=error.message)
        print(f"error: {error.message}", file=sys.stderr)
        code = 1
    except KeyboardInterrupt:
        code = _INTERRUPTED
    finally:
        _leave_stuck_threads(code or 1)
    if code:
        sys.exit(code)


def _leave_stuck_threads(code: int) -> None:
    """Ends the process at once where a call into a model never returns: a regular exit would wait for it for ever."""
    if threads := model_thread.stuck():
        if code != _INTERRUPTED:
            log.error("a call into the model does not return; leaving it", threads=threads)
            print("error: a call into the model does not return; the process ends without it", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
