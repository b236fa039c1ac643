"""Tests of a sampler against an exact law: G-test, Holm's procedure, power, and bootstrap intervals of medians.

Needs scipy (`pip install 'draftproof[test]'`).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import stats

K = TypeVar("K", bound=Hashable)

SUM_TOLERANCE = 1e-9
LARGEST_SAMPLE = 2**40


@dataclass(frozen=True, slots=True)
class GTest:
    """Outcome of a G-test.

    Attributes:
        statistic: 2 Σ O ln(O / E) over the pooled cells, divided by Williams' correction; inf if `impossible` > 0.
        degrees: pooled cells - 1.
        p_value: upper tail of chi²(degrees); 1 with a single cell, 0 if `impossible` > 0.
        total: samples.
        impossible: samples that the law gives no mass.
    """

    statistic: float
    degrees: int
    p_value: float
    total: int
    impossible: int


@dataclass(frozen=True, slots=True)
class MedianInterval:
    """A median with its bootstrap interval."""

    median: float
    low: float
    high: float


def pooled_cells(law: Mapping[K, float], total: int, min_expected: float = 10.0) -> list[list[K]]:
    """Groups the outcomes into cells of expected count >= min_expected, smallest first.

    Depends on the law and the sample size alone, so it is fixed before anything is sampled. Outcomes of zero mass are
    in no cell. Outcomes of equal mass keep the law's order.

    Raises:
        ValueError: the law is no distribution, or `total` is too small for even one cell.
    """
    masses = law.values()
    if not all(math.isfinite(mass) and mass >= 0 for mass in masses) or abs(math.fsum(masses) - 1) > SUM_TOLERANCE:
        raise ValueError(f"the law must be non-negative and sum to one, it sums to {math.fsum(masses)!r}")
    if total < min_expected:
        raise ValueError(f"{total} samples can't fill a cell of {min_expected} expected")
    cells: list[list[K]] = []
    pool: list[K] = []
    expected = 0.0
    for outcome, mass in sorted(((o, m) for o, m in law.items() if m > 0), key=lambda item: item[1]):
        pool.append(outcome)
        expected += mass * total
        if expected >= min_expected:
            cells.append(pool)
            pool, expected = [], 0.0
    if pool and cells:
        cells[-1].extend(pool)
    elif pool:
        cells.append(pool)
    return cells


def g_test(counts: Mapping[K, int], law: Mapping[K, float], min_expected: float = 10.0) -> GTest:
    """Tests whether samples follow a law.

    The statistic carries Williams' correction: at an expected count of 10 a cell the plain one is too large by up to
    1/60, which over hundreds of cells would double the false alarms at small levels.

    Args:
        counts: how often each outcome was seen.
        law: mass of each outcome; an outcome that is absent has mass 0.
        min_expected: cells are pooled to at least this expected count.
    """
    total = sum(counts.values())
    cells = pooled_cells(law, total, min_expected)
    degrees = len(cells) - 1
    impossible = sum(count for outcome, count in counts.items() if law.get(outcome, 0.0) == 0.0)
    if impossible:
        return GTest(math.inf, degrees, 0.0, total, impossible)
    if degrees == 0:
        return GTest(0.0, 0, 1.0, total, 0)
    masses = _masses(cells, law)
    observed = np.array([sum(counts.get(outcome, 0) for outcome in cell) for cell in cells], dtype=np.float64)
    correction = 1 + (float((1 / masses).sum()) - 1) / (6 * total * degrees)
    statistic = 2 * _relative_entropy(observed, masses * total) / correction
    return GTest(statistic, degrees, float(stats.chi2.sf(statistic, degrees)), total, 0)


def holm(p_values: Sequence[float], alpha: float) -> list[bool]:
    """Holm's step-down procedure: which hypotheses fall, with a chance of at most alpha that any falls wrongly.

    Raises:
        ValueError: a p-value is outside [0, 1]; NaN would pass for a success.
    """
    if not all(0 <= p <= 1 for p in p_values):
        raise ValueError(f"p-values must be in [0, 1], got {list(p_values)}")
    rejected = [False] * len(p_values)
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        if p_values[index] > alpha / (len(p_values) - rank):
            break
        rejected[index] = True
    return rejected


def power(
    law: Mapping[K, float], alternative: Mapping[K, float], total: int, alpha: float, min_expected: float = 10.0
) -> float:
    """Chance that the G-test of `law` falls at level alpha where samples really follow `alternative`.

    Noncentral chi² approximation with noncentrality 2 · total · KL(alternative ‖ law) over the pooled cells; mass that
    the alternative puts where the law has none is caught at its first sample.
    """
    cells = pooled_cells(law, total, min_expected)
    outside = math.fsum(mass for outcome, mass in alternative.items() if law.get(outcome, 0.0) == 0.0)
    missed = (1 - min(outside, 1.0)) ** total
    degrees = len(cells) - 1
    if degrees == 0 or outside >= 1:
        return 1 - missed
    divergence = _relative_entropy(_masses(cells, alternative) / (1 - outside), _masses(cells, law))
    noncentrality = 2 * total * max(divergence, 0.0)
    threshold = float(stats.chi2.isf(alpha, degrees))
    caught = float(stats.ncx2.sf(threshold, degrees, noncentrality)) if noncentrality > 0 else alpha
    return 1 - missed * (1 - caught)


def sample_size(
    law: Mapping[K, float],
    alternative: Mapping[K, float],
    alpha: float,
    wanted_power: float = 0.99,
    min_expected: float = 10.0,
) -> int:
    """Samples with which the G-test reaches the wanted power (a power of two times min_expected, then bisected).

    Raises:
        ValueError: the alternative is so close to the law that 2^40 samples don't suffice.
    """
    low, high = math.ceil(min_expected), 2 * math.ceil(min_expected)
    while power(law, alternative, high, alpha, min_expected) < wanted_power:
        low, high = high, 2 * high
        if high > LARGEST_SAMPLE:
            raise ValueError("the alternative can't be told from the law")
    while high - low > max(1, low // 1000):
        middle = (low + high) // 2
        if power(law, alternative, middle, alpha, min_expected) < wanted_power:
            low = middle
        else:
            high = middle
    return high


def marginal(law: Mapping[tuple[int, ...], float], position: int) -> dict[int | None, float]:
    """Law of the token at one position of a joint law; None stands for outputs that ended before it."""
    masses: dict[int | None, list[float]] = {}
    for outcome, mass in law.items():
        token = outcome[position] if position < len(outcome) else None
        masses.setdefault(token, []).append(mass)
    return {token: math.fsum(parts) for token, parts in masses.items()}


def bootstrap_ratio_interval(
    pairs: Sequence[tuple[float, float]], level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> MedianInterval:
    """Median of a/b over paired measurements (a, b), with its percentile bootstrap interval.

    Pairs taken close in time share the machine's mood, so each gives one ratio; ratios of means would not.

    Raises:
        ValueError: no pairs, or a measurement that is not positive.
    """
    values = np.asarray(pairs, dtype=np.float64)
    if values.size == 0 or not (np.isfinite(values) & (values > 0)).all():
        raise ValueError("ratios need at least one pair of positive finite measurements")
    return bootstrap_median_interval((values[:, 0] / values[:, 1]).tolist(), level, resamples, seed)


def bootstrap_median_interval(
    values: Sequence[float], level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> MedianInterval:
    """Median of the values, with its percentile bootstrap interval.

    Raises:
        ValueError: no values, or one that is not finite.
    """
    sample = np.asarray(values, dtype=np.float64)
    if sample.size == 0 or not np.isfinite(sample).all():
        raise ValueError("a median needs at least one finite value, and no others")
    picks = np.random.default_rng(seed).integers(len(sample), size=(resamples, len(sample)))
    low, high = np.quantile(np.median(sample[picks], axis=1), [(1 - level) / 2, (1 + level) / 2])
    return MedianInterval(float(np.median(sample)), float(low), float(high))


def _masses(cells: Sequence[Sequence[K]], law: Mapping[K, float]) -> NDArray[np.float64]:
    return np.array([math.fsum(law.get(outcome, 0.0) for outcome in cell) for cell in cells], dtype=np.float64)


def _relative_entropy(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Σ a ln(a / b) over the cells with a > 0."""
    held = a > 0
    return float((a[held] * np.log(a[held] / b[held])).sum())
