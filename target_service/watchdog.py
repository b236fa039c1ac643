"""Health by progress: NOT_SERVING while there is work and none of it gets done (G2)."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from draftproof.metrics.target import TargetMetrics

log = structlog.get_logger(__name__)


class Watchdog:
    """Watches that work gets done.

    Args:
        stall_timeout: seconds a pass may take, or runnable work may wait.
        metrics: told of health.
        on_health: likewise.
    """

    def __init__(self, stall_timeout: float, metrics: TargetMetrics, on_health: Callable[[bool], None]) -> None:
        self._stall_timeout = stall_timeout
        self._metrics = metrics
        self._on_health = on_health
        self._progress_at = time.monotonic()
        self._healthy = True

    def progressed(self) -> None:
        """A pass has ended."""
        self._progress_at = time.monotonic()
        if not self._healthy:
            log.info("progress again")
            self._turn(True)

    def look(self, working: bool) -> None:
        """To be called often.

        Args:
            working: whether there is anything to do.
        """
        now = time.monotonic()
        if not working:
            self._progress_at = now
        elif self._healthy and now - self._progress_at > self._stall_timeout:
            log.error("no progress", seconds=round(now - self._progress_at, 1))
            self._turn(False)

    def _turn(self, healthy: bool) -> None:
        self._healthy = healthy
        self._metrics.health(healthy)
        self._on_health(healthy)
