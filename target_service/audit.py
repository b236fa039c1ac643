"""The online audit of a target: accounts by drafter, and what follows from an alarm."""

from __future__ import annotations

import secrets

import numpy as np
import structlog

from draftproof.audit.account import Account, Alarm, Evidence, threshold
from draftproof.metrics.audit import AuditMetrics
from draftproof.sampling.params import Rule
from draftproof.verification.round import RoundResult
from target_service.session import PendingRound, Session

log = structlog.get_logger(__name__)

FALSE_ALARM = 1e-6
"""Probability that any test of any drafter ever alarms with nothing wrong, over the life of the process."""
MAX_DRAFTERS = 16
"""Drafters with an account of their own; all others share one."""
ROUNDS_PER_PASS = 2
"""About how many rounds of a forward pass are examined, by chance where it holds more: it bounds the cost."""
NOBODY = "none"
"""The account of sessions without a drafter."""
OTHERS = "other"


class Audit:
    """Collects evidence, bets on it, and remembers who was caught. Runs on the event loop.

    Args:
        max_gamma: most proposals of a block.
        metrics: of this process.
    """

    def __init__(self, max_gamma: int, metrics: AuditMetrics) -> None:
        self._max_gamma = max_gamma
        self._metrics = metrics
        self._threshold = threshold(FALSE_ALARM, MAX_DRAFTERS + 2)
        # No peer may know what the transforms are randomised by.
        self._random = np.random.default_rng(secrets.randbits(128)).random
        self._accounts: dict[str, Account] = {}
        self._caught: set[str] = set()

    def name(self, drafter: str) -> str:
        """The account of a drafter, "" being none; made on first sight."""
        name = drafter or NOBODY
        if name not in self._accounts and name != NOBODY:
            own = sum(known not in (NOBODY, OTHERS) for known in self._accounts)
            name = name if own < MAX_DRAFTERS and name != OTHERS else OTHERS
        if name not in self._accounts:
            self._accounts[name] = Account(self._threshold, self._max_gamma, self._random)
            self._metrics.account(name)
        return name

    def quarantined(self, drafter: str) -> bool:
        """Whether proposals of this drafter are no longer taken."""
        return bool(drafter) and self.name(drafter) in self._caught

    def examines(self, session: Session, active: int) -> bool:
        """Whether the next round of a session is evidence: decided before it is looked at, by numbers nobody knows.

        Args:
            session: whose.
            active: sessions that share the forward passes, itself included.
        """
        return session.audited and float(self._random(1)[0]) * active < ROUNDS_PER_PASS

    def observe(self, session: Session, pending: PendingRound, result: RoundResult, emitted: int) -> None:
        """Takes in a round that was committed.

        Args:
            session: whose.
            pending: the round, its proposals as they were sent.
            result: what verification found.
            emitted: tokens up to the cut of a stop.
        """
        name = self.name(session.drafter)
        if not session.audited:
            self._metrics.unaudited(name, emitted)
        if not pending.audited:
            return
        account = self._accounts[name]
        seen = result.seen
        alarms = account.observe(
            Evidence(
                proposals=pending.sent,
                surplus=_surplus(session.params.rule, result),
                output=seen.output[:emitted] if seen is not None else (),
                excess=seen.excess[:emitted] if seen is not None else (),
                tokens=emitted,
            )
        )
        self._metrics.tokens(name, emitted)
        if account.is_settled:
            self._metrics.standing(name, {check: bets.log_wealth for check, bets in account.bets.items()})
        for alarm in alarms:
            self._raise(name, alarm)

    def _raise(self, name: str, alarm: Alarm) -> None:
        self._metrics.alarm(name, alarm.check)
        log.error(
            "audit alarm",
            drafter=name,
            test=alarm.check.value,
            tokens=alarm.tokens,
            deviation=round(alarm.deviation, 4),
            log_e=round(alarm.log_e, 1),
        )
        if name != NOBODY and name not in self._caught:
            self._caught.add(name)
            self._metrics.quarantine(name)
            log.error("draft quarantined", drafter=name, test=alarm.check.value)


def _surplus(rule: Rule, result: RoundResult) -> float | None:
    """Accepted less expected, of the whole verdict; the coupled rule expects what it finds."""
    if rule is Rule.COUPLED or not result.examined:
        return None
    return result.accepted - sum(result.overlaps)
