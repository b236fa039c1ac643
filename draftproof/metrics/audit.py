"""Metrics of the online audit of a target."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge

from draftproof.audit.account import Check
from draftproof.metrics.common import PREFIX, Recorder, never_raises


class AuditMetrics:
    """Metrics of the audit; a mistake in them is counted by the process they belong to.

    Args:
        registry: this process's own.
        recorder: the metrics of the process.
    """

    def __init__(self, registry: CollectorRegistry, recorder: Recorder) -> None:
        self.failed_to_record = recorder.failed_to_record
        self._wealth = Gauge(
            f"{PREFIX}_audit_log_wealth",
            "Natural logarithm of the e-value against an honest draft and an exact target, by test and drafter; it"
            " alarms at 18. Below 0 all is well.",
            ["test", "drafter"],
            registry=registry,
        )
        self._alarms = Counter(
            f"{PREFIX}_audit_alarms",
            "Tests of the audit that failed, by test and drafter; one at most of each while the target runs.",
            ["test", "drafter"],
            registry=registry,
        )
        self._quarantines = Counter(
            f"{PREFIX}_audit_quarantines",
            "Drafters whose proposals are no longer taken, until the target starts again.",
            ["drafter"],
            registry=registry,
        )
        self._tokens = Counter(
            f"{PREFIX}_audited_tokens",
            "Committed tokens that the audit examined: about two rounds of a pass.",
            ["drafter"],
            registry=registry,
        )
        self._unaudited = Counter(
            f"{PREFIX}_unaudited_tokens",
            "Committed tokens of requests whose key the target didn't make: seeded, or resumed.",
            ["drafter"],
            registry=registry,
        )

    @never_raises
    def account(self, drafter: str) -> None:
        """Creates the series of a drafter, so that zeros exist before the first event."""
        for check in Check:
            self._wealth.labels(test=check, drafter=drafter).set(0)
            self._alarms.labels(test=check, drafter=drafter)
        for counter in (self._quarantines, self._tokens, self._unaudited):
            counter.labels(drafter=drafter)

    @never_raises
    def tokens(self, drafter: str, count: int) -> None:
        """Counts examined tokens."""
        self._tokens.labels(drafter=drafter).inc(count)

    @never_raises
    def standing(self, drafter: str, log_wealth: Mapping[Check, float]) -> None:
        """Says how the tests stand."""
        for check, value in log_wealth.items():
            self._wealth.labels(test=check, drafter=drafter).set(value)

    @never_raises
    def unaudited(self, drafter: str, count: int) -> None:
        """Counts tokens that no test may use."""
        self._unaudited.labels(drafter=drafter).inc(count)

    @never_raises
    def alarm(self, drafter: str, check: Check) -> None:
        """Counts one alarm."""
        self._alarms.labels(test=check, drafter=drafter).inc()

    @never_raises
    def quarantine(self, drafter: str) -> None:
        """Counts one quarantine."""
        self._quarantines.labels(drafter=drafter).inc()
