"""How many continuations a test needs, and what it says about total variation: both fixed by p and the count alone.

Let a test have K cells, N samples, and the samples' true law P over the cells differ from p by δ in total variation.
The G statistic then follows, approximately, a noncentral χ² of K − 1 degrees. Its noncentrality is 2 N KL(P ‖ p); by
Pinsker's inequality that is at least 4 N δ², whatever the direction in which P differs. So

    power ≥ P[χ²(K − 1, 4 N δ²) > the critical value],

and read backwards, a statistic that a noncentrality of λ exceeds with probability c shows δ ≤ √(λ / 4N) with
confidence c.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import TypeVar

from scipy import optimize, stats

from draftproof.testing.statistics import LARGEST_SAMPLE, GTest, pooled_cells

K = TypeVar("K", bound=Hashable)

MIN_EXPECTED = 10.0
"""Cells are pooled to at least this expected count."""


def least_power(degrees: int, total: int, tv: float, alpha: float) -> float:
    """Chance at least with which the G-test falls at level alpha where the law over its cells is off by `tv`.

    Args:
        degrees: cells - 1; without any nothing is ever found.
        total: samples.
        tv: total variation, 0..1.
        alpha: level of this one test.
    """
    if degrees == 0:
        return 0.0
    if tv == 0:
        return alpha
    return float(stats.ncx2.sf(stats.chi2.isf(alpha, degrees), degrees, 4 * total * tv * tv))


def power_of(law: Mapping[K, float], total: int, tv: float, alpha: float) -> float:
    """`least_power` of the test that `total` samples of a law make.

    A law of one outcome has no cells to compare, but every other outcome is impossible under it and found at once.
    """
    if is_certain(law):
        return float(1 - (1 - tv) ** total)
    return least_power(len(pooled_cells(law, total, MIN_EXPECTED)) - 1, total, tv, alpha)


def is_certain(law: Mapping[K, float]) -> bool:
    """Whether a law has one outcome alone, as at temperature 0."""
    return sum(mass > 0 for mass in law.values()) == 1


def samples_for(law: Mapping[K, float], tv: float, alpha: float, wanted: float = 0.99) -> int:
    """Samples with which a law that is off by `tv` falls at level alpha with probability `wanted` at least.

    More samples can need more cells and so have less power for a moment; the answer is one that suffices, to a
    thousandth.

    Raises:
        ValueError: 2^40 samples don't suffice.
    """
    low, high = math.ceil(MIN_EXPECTED), 2 * math.ceil(MIN_EXPECTED)
    while power_of(law, high, tv, alpha) < wanted:
        low, high = high, 2 * high
        if high > LARGEST_SAMPLE:
            raise ValueError(f"a total variation of {tv} can't be found with {LARGEST_SAMPLE} samples")
    while high - low > max(1, low // 1000):
        middle = (low + high) // 2
        if power_of(law, middle, tv, alpha) < wanted:
            low = middle
        else:
            high = middle
    return high


def findable(law: Mapping[K, float], total: int, alpha: float, wanted: float = 0.99) -> float:
    """The least total variation that `total` samples find with probability `wanted`; 1 where that is none."""
    if power_of(law, total, 1.0, alpha) < wanted:
        return 1.0
    return float(optimize.brentq(lambda tv: power_of(law, total, tv, alpha) - wanted, 1e-9, 1.0, xtol=1e-6))


def tv_bound(test: GTest, law: Mapping[K, float], confidence: float = 0.99) -> float:
    """Upper confidence bound on the total variation over a test's cells, 0..1.

    A statistic below its mean is taken as the mean: samples that fit better than chance would are no proof of more.

    Args:
        test: its outcome.
        law: what it tested.
        confidence: chance at least that the true one is no larger.

    Returns:
        1 where an impossible token was seen, or where there was nothing to compare.
    """
    if is_certain(law) and not test.impossible:
        return float(1 - (1 - confidence) ** (1 / test.total))
    if test.degrees == 0 or not math.isfinite(test.statistic):
        return 1.0
    statistic = max(test.statistic, float(test.degrees))

    def excess(noncentrality: float) -> float:
        return float(stats.ncx2.sf(statistic, test.degrees, noncentrality)) - confidence

    low = high = 1e-9
    while excess(high) < 0:
        low, high = high, 2 * max(high, 1.0)
    found = optimize.brentq(excess, low, high, xtol=1e-6) if high > low else low
    return min(1.0, math.sqrt(float(found) / (4 * test.total)))


def tv_seen(counts: Mapping[K, int], law: Mapping[K, float]) -> float:
    """Total variation between the counts' shares and the law over all its outcomes: what was seen, noise included."""
    total = sum(counts.values())
    keys = {*counts, *law}
    return 0.5 * math.fsum(abs(counts.get(key, 0) / total - law.get(key, 0.0)) for key in keys)


def tv_noise(law: Mapping[K, float], total: int) -> float:
    """What `tv_seen` is on average, about, where the law holds: the mean absolute deviation of normal counts."""
    return 0.5 * math.fsum(math.sqrt(2 / math.pi * mass * (1 - mass) / total) for mass in law.values())
