"""One draft's account with the audit: four tests, what feeds them, and when they say that something is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from draftproof.audit.bets import Bets, DriftBets, UniformBets
from draftproof.audit.transform import Interval, uniforms

# Stakes are set anew after this many committed tokens: bets are settled together, which costs a few calls of numpy.
SETTLE_TOKENS = 128


class Check(StrEnum):
    """What is tested."""

    PROPOSALS = "proposals"
    """Proposals come from the q sent with them."""
    ACCEPTANCE = "acceptance"
    """As many stay as p and q say."""
    OUTPUT = "output"
    """Committed tokens come from p."""
    EXCESS = "excess"
    """They lie where p exceeds q as often as p says."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one judged round tells.

    Attributes:
        proposals: of every proposal as it was sent, under its q.
        surplus: accepted minus expected; None where the rule has no such test.
        output: of every committed token under p; empty under a rule that bends the law.
        excess: for every committed token that a proposal was made for: whether it lies in {rho p > q}, minus the mass
            that p has there.
        tokens: committed tokens.
    """

    proposals: Sequence[Interval] = ()
    surplus: float | None = None
    output: Sequence[Interval] = ()
    excess: Sequence[float] = ()
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Alarm:
    """A test that an honest draft and an exact target would hardly ever fail.

    Attributes:
        check: which.
        tokens: committed tokens it took.
        deviation: its size: total variation from uniform for `proposals` and `output`, tokens a round for `acceptance`,
            difference of probability for `excess`.
        log_e: natural logarithm of the e-value.
    """

    check: Check
    tokens: int
    deviation: float
    log_e: float


@dataclass(slots=True)
class Account:
    """State of the tests of one draft.

    Attributes:
        threshold: natural logarithm of the e-value at which a test alarms (see `threshold`).
        max_gamma: most proposals of a block.
        random: float64[N] in [0, 1) of a generator that no peer knows.
        tokens: committed tokens audited, those not yet settled included.
        alarms: at most one per test.
    """

    threshold: float
    max_gamma: int
    random: Callable[[int], NDArray[np.float64]]
    tokens: int = 0
    alarms: dict[Check, Alarm] = field(default_factory=dict)
    bets: dict[Check, Bets] = field(init=False)
    _open: list[Evidence] = field(default_factory=list)
    _open_tokens: int = 0

    def __post_init__(self) -> None:
        self.bets = {
            Check.PROPOSALS: UniformBets(),
            Check.ACCEPTANCE: DriftBets(max(1, self.max_gamma)),
            Check.OUTPUT: UniformBets(),
            Check.EXCESS: DriftBets(1.0),
        }

    @property
    def is_settled(self) -> bool:
        """Whether the bets cover every round that was taken in."""
        return not self._open

    def observe(self, evidence: Evidence) -> list[Alarm]:
        """Takes in one round; the alarms raised where that settles the bets."""
        self.tokens += evidence.tokens
        self._open_tokens += evidence.tokens
        self._open.append(evidence)
        return self.settle() if self._open_tokens >= SETTLE_TOKENS else []

    def settle(self) -> list[Alarm]:
        """Settles the bets on all rounds since the last time; the alarms that this raises."""
        rounds, self._open, self._open_tokens = self._open, [], 0
        self.bets[Check.PROPOSALS].observe(self._uniforms([i for r in rounds for i in r.proposals]))
        self.bets[Check.OUTPUT].observe(self._uniforms([i for r in rounds for i in r.output]))
        self.bets[Check.ACCEPTANCE].observe(np.array([r.surplus for r in rounds if r.surplus is not None]))
        self.bets[Check.EXCESS].observe(np.array([value for r in rounds for value in r.excess]))
        raised = []
        for check, bets in self.bets.items():
            log_e = bets.log_wealth
            if log_e >= self.threshold and check not in self.alarms:
                self.alarms[check] = Alarm(check, self.tokens, bets.deviation, log_e)
                raised.append(self.alarms[check])
        return raised

    def _uniforms(self, found: Sequence[Interval]) -> NDArray[np.float64]:
        # A distribution whose tokens all have one mass tells nothing, whichever of them was drawn.
        telling = [interval for interval in found if interval.mass < 1.0]
        if not telling:
            return np.empty(0)
        return uniforms(np.array(telling, dtype=np.float64), self.random(len(telling)))


def threshold(false_alarm: float, accounts: int) -> float:
    """Natural logarithm of the e-value at which each test of each account alarms, by Ville's inequality.

    Args:
        false_alarm: the probability that any of them ever does, over an unlimited run, with nothing wrong.
        accounts: how many there can be.
    """
    return math.log(len(Check) * accounts / false_alarm)
