"""How many proposals the next block should have: pure policy, no clocks.

Maximises committed tokens per second, not acceptance. With conditional acceptance a_i at offset i, a block of γ commits
E(γ) = 1 + Σ_{k ≤ γ} Π_{i < k} a_i tokens in expectation (Leviathan et al. 2023, section 3.1, with a_i in place of one
α), and takes T(γ) = γ·draft + base + γ·slope seconds: drafting one after another, then one round trip whose
verification grows a little with γ. The choice reads only what past rounds showed, so it says nothing about the draws
to come (L6).

While γ rests at 0 the target needs no word from the draft, so most rounds go without the round trip (`rest`), and γ = 0
is judged at what it then costs.

Acceptance and the cost of a proposal are kept apart for greedy and for drawn text, and for each outlook: what the text
itself suggests is free and mostly right, whatever the draft model is worth.

What isn't tried isn't known, so now and then a round has another γ than the best one: a few proposals while γ rests at
0, half as many while it doesn't. Each probe that changes nothing doubles the time to the next. A session begins with
one of its own, since its text may be of another kind than those before. Sessions of a pair take turns: many together
try no more often than one does, each round of theirs being one of many rows of a pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from draftproof.serving.drafting import Outlook
from draftproof.serving.experience import Experience, Kind, Trials


@dataclass(frozen=True, slots=True)
class GammaLimits:
    """Settings of the control.

    Attributes:
        largest: most proposals.
        unaided: most rounds without proposals that the target runs unasked.
        first: proposals before anything is known.
        acceptance_decay: weight of earlier trials of an offset after each new one; 0.98 looks back some 50.
        time_decay: weight of earlier timings after each round; 0.997 looks back some 300.
        probe_first: rounds of each session of a pair at its best γ before the first probe of one of them.
        probe_last: rounds of each between probes at most.
        burst: rounds of one probe of a resting pair, and of a session's own at its begin.
    """

    largest: int
    first: int
    unaided: int = 0
    acceptance_decay: float = 0.98
    time_decay: float = 0.997
    probe_first: int = 32
    probe_last: int = 512
    burst: int = 3


@dataclass(frozen=True, slots=True)
class FixedGamma:
    """The same every time."""

    gamma: int

    def running(self) -> AbstractContextManager[None]:
        """No matter."""
        return nullcontext()

    def choose(self, outlook: Outlook = Outlook.USUAL) -> int:
        """Proposals for every block."""
        return self.gamma

    def rest(self, most: int) -> int:
        """Rounds without proposals that may follow one unasked: `most` of them if there are no others."""
        return 0 if self.gamma else most

    def wakes(self, outlook: Outlook) -> bool:
        """Never."""
        return False

    def learn(
        self, examined: int, accepted: int, draft_seconds: float, target_seconds: float, wire_seconds: float | None
    ) -> None:
        """Nothing to learn."""


# What a fresh pair is taken for, and how many trials that is worth.
_FRESH_ACCEPTANCE = 0.6
_FRESH_TRIALS = 1.0
# A session's own acceptance counts for this many trials of its pair's.
_PAIR_TRIALS = 8.0


class GammaControl:
    """Chooses γ for one session.

    Args:
        limits: settings.
        pair: experience of the draft–target pair, shared by its sessions.
        greedy: whether the session's text is.
    """

    def __init__(self, limits: GammaLimits, pair: Experience, greedy: bool = False) -> None:
        self._limits = limits
        self._pair = pair
        self._greedy = greedy
        self._outlook = Outlook.USUAL
        self._own: dict[Outlook, Trials] = {}
        self._opening = True
        self._burst = 0
        self._first_round = True

    @property
    def _kind(self) -> Kind:
        fresh = Kind(probe_after=self._limits.probe_first)
        return self._pair.kinds.setdefault((self._greedy, self._outlook), fresh)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Counts among the sessions of its pair."""
        self._pair.sessions += 1
        try:
            yield
        finally:
            self._pair.sessions -= 1

    @property
    def _probe_after(self) -> int:
        return self._kind.probe_after * max(1, self._pair.sessions)

    def _opens(self) -> bool:
        """Whether it is the session's turn to see what its own text is worth, while others rest."""
        others = self._pair.sessions - 1
        turn = self._kind.since_opening >= others * self._limits.probe_first
        return self._opening and turn and self._may_pay()

    def choose(self, outlook: Outlook = Outlook.USUAL) -> int:
        """Proposals for the next block, 0..largest.

        Args:
            outlook: what kind of block it would be.
        """
        limits = self._limits
        self._outlook = outlook
        if outlook is Outlook.NOTHING:
            return 0
        if not self._pair.timing.weight:
            return min(limits.first, limits.largest)
        kind, best = self._kind, self._best()
        if kind.resting is not (not best):
            kind.resting = not best
            kind.probe_after = limits.probe_first
        if not best and self._burst:
            self._burst -= 1
            return min(1, limits.largest)
        if not best and self._opens():
            self._opening, self._burst = False, limits.burst - 1
            kind.since_opening = 0
            return min(1, limits.largest)
        kind.since_opening += 1
        kind.since_probe += 1
        if kind.since_probe <= self._probe_after:
            return best
        kind.since_probe = 0
        kind.probe_after = min(2 * kind.probe_after, limits.probe_last)
        if best:
            return best // 2
        self._burst = limits.burst - 1
        kind.trials.doubt(_PAIR_TRIALS)
        for trials in self._own.values():
            trials.doubt(_PAIR_TRIALS)
        return min(1, limits.largest)

    def rest(self, most: int) -> int:
        """Rounds without proposals that may follow the one just chosen unasked, 0..most; they count as chosen."""
        if self._outlook is Outlook.NOTHING:
            return most
        kind = self._kind
        if not kind.resting or self._burst or self._opens():
            return 0
        rounds = max(0, min(most, (self._probe_after - kind.since_probe) // max(1, self._pair.sessions)))
        kind.since_opening += rounds
        kind.since_probe += rounds
        return rounds

    def wakes(self, outlook: Outlook) -> bool:
        """Whether a block of this kind is worth ending a rest for: what the text suggests may be gone after it."""
        if outlook is not Outlook.COPY:
            return False
        self._outlook = outlook
        return bool(self._best())

    def learn(
        self, examined: int, accepted: int, draft_seconds: float, target_seconds: float, wire_seconds: float | None
    ) -> None:
        """Takes a round's outcome.

        Args:
            examined: proposals that took part in verification.
            accepted: those of them that held.
            draft_seconds: drafting.
            target_seconds: the target's queue, pass and verification.
            wire_seconds: the rest of the time from sending the block to its verdict; None in a round that came unasked.
        """
        limits, kind = self._limits, self._kind
        for trials in (self._own.setdefault(self._outlook, Trials()), kind.trials):
            trials.add(examined, accepted, limits.acceptance_decay)
        if self._first_round:
            # both sides read the prompt in it
            self._first_round = False
            return
        self._pair.timing.add(examined, target_seconds, wire_seconds, limits.time_decay)
        kind.drafting.add(examined, draft_seconds, limits.time_decay)

    def _costs(self) -> tuple[float, float, float]:
        """Seconds of a round at rest, of one with a block, and of each proposal of it more."""
        timing, unaided = self._pair.timing, self._limits.unaided
        base, slope = timing.line()
        rest = (base + unaided * max(base - timing.wire, 0.1 * base)) / (1 + unaided)
        return rest, base, slope + self._kind.drafting.step

    def _may_pay(self) -> bool:
        """Whether a proposal would be worth its cost if all of them held."""
        rest, base, step = self._costs()
        return base + step < 2 * rest

    def _best(self) -> int:
        rest, base, step = self._costs()
        best, best_rate = 0, 1 / rest
        committed, run, acceptance = 1.0, 1.0, _FRESH_ACCEPTANCE
        for gamma in range(1, self._limits.largest + 1):
            acceptance = self._acceptance(gamma - 1, acceptance)
            run *= acceptance
            committed += run
            rate = committed / (base + gamma * step)
            if rate > best_rate:
                best, best_rate = gamma, rate
        return best

    def _acceptance(self, offset: int, before: float) -> float:
        """Acceptance at an offset; one never tried is taken for the one before it."""
        acceptance = before
        own = self._own.get(self._outlook)
        for trials, weight in ((self._kind.trials, _FRESH_TRIALS), (own, _PAIR_TRIALS)):
            if trials is not None and offset < len(trials.tried):
                acceptance = (trials.hit[offset] + weight * acceptance) / (trials.tried[offset] + weight)
        return acceptance
