"""When to try again, and after how long. Time and luck are injected; nothing here sleeps or sends."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from tenacity import RetryCallState

from draftproof.errors import ConfigError, DeadlineExceededError, OverloadedError, RequestError, UnavailableError


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """What the SDK does where a server is full, away or leaving. Never past the request's own timeout.

    Nothing is retried that a server may have refused for good, and no token is ever drawn twice: before the first event
    a request is simply sent again; after it, it is resumed from the tokens already received, under the same key.

    Attributes:
        overloaded: come back to a full server as often as it takes.
        unavailable: seconds to keep knocking where nobody answers, before the first event.
        resume: continue a generation whose server drained or went away, so that the caller sees one unbroken stream.
        initial_backoff: first pause where the server names none, seconds.
        max_backoff: longest such pause, seconds.
        notice: told of every failure that is about to be tried again, and for how many seconds that may go on.
    """

    overloaded: bool = True
    unavailable: float = 10.0
    resume: bool = True
    initial_backoff: float = 0.1
    max_backoff: float = 5.0
    notice: Callable[[RequestError, float], None] | None = None

    def __post_init__(self) -> None:
        for field in ("unavailable", "initial_backoff", "max_backoff"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise ConfigError(f"retries.{field}", f"must be seconds >= 0, got {value!r}")

    def pause(self, attempt: int, hint: float | None, luck: float) -> float:
        """Seconds to wait after failed attempt number `attempt` (from 1).

        A hint is honoured in full and spread over as much again, so that those who were refused together don't come
        back together. It doesn't grow: late comers must not overtake whoever has waited longest.

        Args:
            hint: the server's retry delay, seconds.
            luck: uniform in [0, 1).
        """
        if hint is not None and hint > 0:
            return hint * (1 + luck)
        longest = min(self.max_backoff, self.initial_backoff * 2.0 ** min(attempt - 1, 32))
        return longest * (1 + luck) / 2


NO_RETRIES = RetryPolicy(overloaded=False, unavailable=0.0, resume=False)
"""Every failure reaches the caller at once."""


@dataclass(frozen=True, slots=True)
class Edges:
    """Time and luck, injected by tests."""

    clock: Callable[[], float] = time.monotonic
    luck: Callable[[], float] = random.random


class Deadline:
    """A point in time that every attempt of one call shares."""

    def __init__(self, timeout: float, clock: Callable[[], float]) -> None:
        self.timeout = timeout
        self._clock = clock
        self._end = clock() + timeout

    def left(self) -> float:
        """Seconds to go.

        Raises:
            DeadlineExceededError: none.
        """
        left = self._end - self._clock()
        if left <= 0:
            raise self.error()
        return left

    def fits(self, pause: float) -> bool:
        """Whether something can still happen after `pause` seconds."""
        return self._clock() + pause < self._end

    def error(self) -> DeadlineExceededError:
        """What the caller is told when the time is over."""
        return DeadlineExceededError(f"no complete answer within the timeout of {self.timeout:g} s")

    def translate(self, error: RequestError) -> RequestError:
        """Names the timeout where it is what ended a call."""
        return self.error() if isinstance(error, DeadlineExceededError) else error


class Attempts:
    """Decides after a failed attempt: try again after a pause, or give up."""

    def __init__(self, policy: RetryPolicy, deadline: Deadline, edges: Edges) -> None:
        self.policy = policy
        self.deadline = deadline
        self._edges = edges
        self._failures = 0
        self._first_failure: float | None = None

    def succeeded(self) -> None:
        """Something came back: what went wrong before no longer counts."""
        self._failures = 0
        self._first_failure = None

    def pause(self, error: BaseException, *, patient: bool = False) -> float | None:
        """Seconds to wait before the next attempt, None to give up.

        Args:
            patient: knock until the deadline rather than for `policy.unavailable` seconds.
        """
        if not isinstance(error, RequestError) or not self._again(error, patient):
            return None
        self._failures += 1
        pause = self.policy.pause(self._failures, error.retry_delay, self._edges.luck())
        if not self.deadline.fits(pause):
            return None
        if self.policy.notice is not None:
            self.policy.notice(error, self._patience(error, patient))
        return pause

    def _patience(self, error: RequestError, patient: bool) -> float:
        left = self.deadline.left()
        if patient or isinstance(error, OverloadedError) or self._first_failure is None:
            return left
        return min(left, self._first_failure + self.policy.unavailable - self._edges.clock())

    def _again(self, error: RequestError, patient: bool) -> bool:
        if isinstance(error, OverloadedError):
            return self.policy.overloaded
        if not isinstance(error, UnavailableError):
            return False
        now = self._edges.clock()
        if self._first_failure is None:
            self._first_failure = now
        return patient or now - self._first_failure < self.policy.unavailable


class Plan:
    """A decision in the form tenacity asks for it: whether, then how long.

    Args:
        pause_after: seconds to wait before another attempt, None to let the error through.
    """

    def __init__(self, pause_after: Callable[[BaseException], float | None]) -> None:
        self._pause_after = pause_after
        self._pause = 0.0

    def retry(self, state: RetryCallState) -> bool:
        """Whether to try again."""
        error = state.outcome.exception() if state.outcome else None
        pause = None if error is None else self._pause_after(error)
        self._pause = pause or 0.0
        return pause is not None

    def wait(self, state: RetryCallState) -> float:
        """How long to wait before it, seconds."""
        return self._pause
