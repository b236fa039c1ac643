"""Power, sample sizes and bounds on total variation: known numbers, every direction of a difference, coverage."""

from __future__ import annotations

import numpy as np
import pytest

from draftproof.certify import design
from draftproof.testing.statistics import GTest, g_test, power

CELLS = 30
# no outcome so unlikely that it would be pooled
LAW = dict(enumerate((np.random.default_rng(3).dirichlet(np.ones(CELLS)) / 2 + 0.5 / CELLS).tolist()))


@pytest.mark.parametrize(
    ("degrees", "noncentrality", "wanted"),
    [(1, 7.849, 0.80), (1, 10.507, 0.90), (2, 9.635, 0.80), (2, 12.654, 0.90), (5, 12.828, 0.80), (5, 16.470, 0.90)],
)
def test_power_gives_the_noncentralities_of_the_tables(degrees: int, noncentrality: float, wanted: float) -> None:
    """Cohen's tables at the 5 % level."""
    total = 1000
    tv = (noncentrality / (4 * total)) ** 0.5
    assert design.least_power(degrees, total, tv, 0.05) == pytest.approx(wanted, abs=2e-4)


def shifted(law: dict[int, float], grow: set[int], tv: float) -> dict[int, float]:
    mass = sum(law[key] for key in grow)
    return {k: m * (1 + tv / mass if k in grow else 1 - tv / (1 - mass)) for k, m in law.items()}


def test_no_direction_has_less_power_and_the_hardest_hardly_more() -> None:
    total, tv, alpha = 4000, 0.05, 1e-3
    least = design.power_of(LAW, total, tv, alpha)
    rng = np.random.default_rng(5)
    powers = {}
    for _ in range(200):
        grow = {key for key in LAW if rng.random() < 0.5} or {0}
        alternative = shifted(LAW, grow, tv)
        assert sum(abs(alternative[k] - LAW[k]) for k in LAW) / 2 == pytest.approx(tv)
        mass = sum(LAW[key] for key in grow)
        powers[abs(mass - 0.5)] = power(LAW, alternative, total, alpha)
    assert 0.2 < least < 0.9
    assert min(powers.values()) >= least - 1e-9
    assert powers[min(powers)] == pytest.approx(least, abs=0.02)


def test_the_sample_size_is_what_the_power_asks_for() -> None:
    total = design.samples_for(LAW, 0.05, 1e-3)
    assert design.power_of(LAW, total, 0.05, 1e-3) >= 0.99
    assert design.power_of(LAW, total - max(2, total // 400), 0.05, 1e-3) < 0.99
    assert design.findable(LAW, total, 1e-3) == pytest.approx(0.05, abs=1e-3)
    # four times as many for half the distance, beside the cells that grow with them
    assert design.samples_for(LAW, 0.025, 1e-3) == pytest.approx(4 * total, rel=0.05)


def test_a_certain_law_is_tested_by_what_it_forbids() -> None:
    law = {"the": 1.0}
    assert design.samples_for(law, 0.05, 1e-3) == 90  # 0.95^90 < 0.01 < 0.95^89
    assert design.power_of(law, 90, 0.05, 1e-3) == pytest.approx(1 - 0.95**90)
    assert design.tv_bound(g_test({"the": 90}, law), law) == pytest.approx(1 - 0.01 ** (1 / 90))
    assert design.tv_bound(g_test({"the": 89, "a": 1}, law), law) == 1.0


def test_what_too_few_samples_find_is_nothing() -> None:
    assert design.findable(LAW, 12, 1e-3) == 1.0
    assert design.tv_bound(g_test({0: 12}, LAW), LAW) == 1.0


def test_the_bound_holds_as_often_as_it_says_and_is_no_looser_than_that() -> None:
    """A law that is off by 0.06, in the direction that is hardest to see: there the bound is tight."""
    grow, mass = set(), 0.0
    for key, share in sorted(LAW.items(), key=lambda item: -item[1]):
        if mass + share <= 0.5:
            grow.add(key)
            mass += share
    tv, total, runs = 0.06, 3000, 400
    truth = list(shifted(LAW, grow, tv).values())
    rng = np.random.default_rng(8)
    missed = 0
    for sample in rng.multinomial(total, truth, size=runs):
        test = g_test(dict(enumerate(sample.tolist())), LAW)
        missed += design.tv_bound(test, LAW, 0.9) < tv
    # 40 expected at most; 63 are exceeded once in 10,000 runs, and a bound twice as loose as it need be misses none
    assert 10 <= missed <= 63


def test_a_passed_test_of_that_size_bounds_the_distance_by_what_it_was_made_for() -> None:
    """The duality: what the test would have found with 0.99, a passed one excludes at 0.99."""
    alpha, total = 1e-3, 4000
    degrees = len(design.pooled_cells(LAW, total, design.MIN_EXPECTED)) - 1
    from scipy import stats

    edge = GTest(float(stats.chi2.isf(alpha, degrees)), degrees, alpha, total, 0)
    assert design.tv_bound(edge, LAW) == pytest.approx(design.findable(LAW, total, alpha), abs=1e-4)


def test_a_better_fit_than_chance_gives_no_better_bound_than_the_mean() -> None:
    lucky, mean = (GTest(s, 29, 0.5, 4000, 0) for s in (3.0, 29.0))
    assert design.tv_bound(lucky, LAW) == design.tv_bound(mean, LAW) > 0.01


def test_tv_seen_is_half_the_sum_of_differences() -> None:
    assert design.tv_seen({"a": 5, "c": 5}, {"a": 0.25, "b": 0.75}) == pytest.approx(0.75)
