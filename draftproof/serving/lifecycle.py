"""A process's life: one line and exit code on a bad start, a drain on SIGTERM."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import structlog

from draftproof.errors import DraftproofError

log = structlog.get_logger(__name__)


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
    """Runs an app until SIGTERM or SIGINT, then drains it. A second signal ends it at once.

    Raises:
        DraftproofError: it could not start, or could not go on.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, loop, stop, number)
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
        stopping.cancel()
        running.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await running


def _on_signal(loop: asyncio.AbstractEventLoop, stop: asyncio.Event, number: signal.Signals) -> None:
    loop.remove_signal_handler(number)
    stop.set()


def main(build: Callable[[], App]) -> None:
    """Builds and serves an app; a failure is one line on stderr and exit code 1."""
    try:
        asyncio.run(serve(build()))
    except DraftproofError as error:
        log.error("stopped by an error", problem=error.message)
        print(f"error: {error.message}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
