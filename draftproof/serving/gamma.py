"""How many proposals the next block should have: pure policy, no clocks.

Maximises committed tokens per second, not acceptance. With conditional acceptance a_i at offset i, a block of γ commits
E(γ) = 1 + Σ_{k ≤ γ} Π_{i < k} a_i tokens in expectation (Leviathan et al. 2023, section 3.1, with a_i in place of one
α), and takes T(γ) = γ·draft + base + γ·slope seconds: drafting one after another, then one round trip whose
verification grows a little with γ. The choice reads only what past rounds showed, so it says nothing about the draws
to come (L6).
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class GammaLimits:
    """Settings of the control.

    Attributes:
        largest: most proposals.
        first: proposals before anything is known.
        decay: weight of the past after each round; 0.97 looks back some 30 rounds.
        probe_first: rounds at γ = 0 before the first probe.
        probe_last: rounds between probes at most; each probe without gain doubles them.
    """

    largest: int
    first: int
    decay: float = 0.97
    probe_first: int = 32
    probe_last: int = 512


@dataclass(slots=True)
class Experience:
    """Decayed sums over rounds; a session's own, or all sessions' of one draft–target pair as a prior."""

    tried: list[float] = field(default_factory=list)
    hit: list[float] = field(default_factory=list)
    drafted: float = 0.0
    draft_seconds: float = 0.0
    weight: float = 0.0
    gammas: float = 0.0
    squares: float = 0.0
    seconds: float = 0.0
    products: float = 0.0

    def add(self, examined: int, accepted: int, draft_seconds: float, round_seconds: float, decay: float) -> None:
        """Adds a round of `examined` proposals, the first `accepted` of which held."""
        for sums in (self.tried, self.hit):
            sums.extend([0.0] * (examined - len(sums)))
            sums[:] = [decay * value for value in sums]
        for i in range(min(examined, accepted + 1)):
            self.tried[i] += 1
            self.hit[i] += i < accepted
        for name, value in (
            ("drafted", float(examined)),
            ("draft_seconds", draft_seconds if examined else 0.0),
            ("weight", 1.0),
            ("gammas", float(examined)),
            ("squares", float(examined * examined)),
            ("seconds", round_seconds),
            ("products", examined * round_seconds),
        ):
            setattr(self, name, decay * getattr(self, name) + value)


@dataclass(frozen=True, slots=True)
class FixedGamma:
    """The same every time."""

    gamma: int

    def choose(self) -> int:
        """Proposals for every block."""
        return self.gamma

    def learn(self, examined: int, accepted: int, draft_seconds: float, round_seconds: float) -> None:
        """Nothing to learn."""


# What a fresh pair is taken for: worth this many rounds of evidence.
_PRIOR_WEIGHT = 4.0
_PRIOR_ACCEPTANCE = 0.6
# A verify row more costs this share of a round until measured.
_PRIOR_SLOPE = 0.03


class GammaControl:
    """Chooses γ for one session.

    Args:
        limits: settings.
        pair: experience of the draft–target pair, shared by its sessions.
    """

    def __init__(self, limits: GammaLimits, pair: Experience) -> None:
        self._limits = limits
        self._pair = pair
        self._own = Experience()
        self._resting = 0
        self._probe_after = limits.probe_first

    def choose(self) -> int:
        """Proposals for the next block, 0..largest."""
        if not self._pair.weight:
            return min(self._limits.first, self._limits.largest)
        best = max(range(self._limits.largest + 1), key=lambda gamma: (self._rate(gamma), -gamma))
        if best:
            self._probe_after = self._limits.probe_first
            self._resting = 0
            return best
        self._resting += 1
        if self._resting > self._probe_after:
            self._resting = 0
            self._probe_after = min(2 * self._probe_after, self._limits.probe_last)
            return min(2, self._limits.largest)
        return 0

    def learn(self, examined: int, accepted: int, draft_seconds: float, round_seconds: float) -> None:
        """Takes a round's outcome: `round_seconds` from sending the block to its verdict."""
        self._own.add(examined, accepted, draft_seconds, round_seconds, self._limits.decay)
        self._pair.add(examined, accepted, draft_seconds, round_seconds, self._limits.decay)

    def _rate(self, gamma: int) -> float:
        """Expected committed tokens per second."""
        return self._committed(gamma) / self._seconds(gamma)

    def _committed(self, gamma: int) -> float:
        total, run = 1.0, 1.0
        acceptance = _PRIOR_ACCEPTANCE
        for i in range(gamma):
            # an offset never tried is taken for the one before it
            acceptance = self._acceptance(i, acceptance)
            run *= acceptance
            total += run
        return total

    def _acceptance(self, offset: int, before: float) -> float:
        hit, tried = _PRIOR_WEIGHT * before, _PRIOR_WEIGHT
        pair_tried = self._pair.tried[offset] if offset < len(self._pair.tried) else 0.0
        if pair_tried:
            hit = _PRIOR_WEIGHT * (self._pair.hit[offset] + before) / (pair_tried + 1.0)
        if offset < len(self._own.tried):
            hit += self._own.hit[offset]
            tried += self._own.tried[offset]
        return hit / tried

    def _seconds(self, gamma: int) -> float:
        """Least squares of round time over γ, pulled towards the prior slope by one round's worth of evidence."""
        sums = self._pair
        mean_gamma = sums.gammas / sums.weight
        mean = sums.seconds / sums.weight
        variance = sums.squares - sums.weight * mean_gamma**2
        covariance = sums.products - sums.weight * mean_gamma * mean
        slope = max(0.0, (covariance + 4.0 * _PRIOR_SLOPE * mean) / (variance + 4.0))
        base = max(mean - slope * mean_gamma, 0.1 * mean)
        draft = sums.draft_seconds / sums.drafted if sums.drafted else 0.0
        return gamma * draft + base + slope * gamma
