"""When a pass begins: at once, or a moment later for sessions that are about to come back.

Which rows share a pass changes speed alone: random numbers belong to requests, not to passes (L9).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress

_GAIN = 0.25
_DEVIATIONS = 2.0
_FORGET = 1.02


class Pace:
    """How soon a session comes back with its next round, from how soon it did before."""

    def __init__(self) -> None:
        self._left_at: float | None = None
        self._mean: float | None = None
        self._deviation = 0.0

    def left(self, now: float) -> None:
        """Its verdict went out."""
        self._left_at = now

    def came(self, now: float) -> None:
        """Its next round is there."""
        if self._left_at is None:
            return
        seconds, self._left_at = now - self._left_at, None
        if self._mean is None:
            self._mean, self._deviation = seconds, seconds / 2
            return
        self._deviation += _GAIN * (abs(seconds - self._mean) - self._deviation)
        self._mean += _GAIN * (seconds - self._mean)

    @property
    def expected_at(self) -> float | None:
        """When the session is back if all goes as before; None where nobody knows."""
        if self._left_at is None or self._mean is None:
            return None
        return self._left_at + self._mean + _DEVIATIONS * self._deviation


class PassTime:
    """What a pass costs however few rows it has: the shortest of late, seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def learn(self, seconds: float) -> None:
        """Takes a pass of rounds alone."""
        self.seconds = min(seconds, self.seconds * _FORGET) if self.seconds else seconds


def wait_until(now: float, ready: int, expected: Iterable[float | None], pass_seconds: float) -> float | None:
    """When to begin, or None: now.

    Waiting w for m sessions costs each of the `ready` ones w; without it the m would wait for the pass to end before
    theirs begins, which is `pass_seconds` - w longer. The best m is taken, if it gains anything.

    Args:
        now: seconds of some clock.
        ready: sessions with work, >= 1.
        expected: when the others are back, on that clock.
        pass_seconds: what a pass costs.
    """
    best, gain = None, 0.0
    for waiting, moment in enumerate(sorted(at for at in expected if at is not None and at > now), 1):
        wait = moment - now
        gained = waiting * (pass_seconds - wait) - ready * wait
        if gained > gain:
            best, gain = moment, gained
    return best


async def gathered(work: asyncio.Event, ready: int, expected: Iterable[float | None], pass_seconds: float) -> bool:
    """Waits where that gains, until there is more work or waiting no longer pays; whether it did."""
    now = time.monotonic()
    until = wait_until(now, ready, expected, pass_seconds)
    if until is None:
        return False
    work.clear()
    with suppress(TimeoutError):
        async with asyncio.timeout(until - now):
            await work.wait()
    work.set()
    return True
