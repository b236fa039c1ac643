"""The statistics that every claim of exactness rests on: calibrated under H0, powerful under a stated alternative."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from draftproof.testing.statistics import (
    bootstrap_median_interval,
    bootstrap_ratio_interval,
    g_test,
    holm,
    marginal,
    pooled_cells,
    power,
    sample_size,
)


def skewed_law(cells: int) -> dict[int, float]:
    masses = 0.97 ** np.arange(cells)
    return dict(enumerate((masses / masses.sum()).tolist()))


def sample(law: dict[int, float], total: int, generator: np.random.Generator) -> dict[int, int]:
    return dict(zip(law, generator.multinomial(total, list(law.values())).tolist(), strict=True))


def test_pooled_cells_hold_every_outcome_once_and_enough() -> None:
    law = {**skewed_law(200), "never": 0.0}
    cells = pooled_cells(law, 500, 10)
    assert sorted(outcome for cell in cells for outcome in cell) == list(range(200))
    assert all(sum(law[outcome] for outcome in cell) * 500 >= 10 - 1e-9 for cell in cells)
    assert len(cells) > 10


def test_pooling_puts_the_smallest_together() -> None:
    assert pooled_cells({"a": 0.5, "b": 0.3, "c": 0.1, "d": 0.06, "e": 0.04}, 100, 10) == [
        ["e", "d"],
        ["c"],
        ["b"],
        ["a"],
    ]


def test_remainder_joins_the_largest_cell() -> None:
    assert pooled_cells({"a": 0.05, "b": 0.06, "c": 0.89}, 100, 95) == [["a", "b", "c"]]
    assert pooled_cells({"a": 0.5, "b": 0.5}, 15, 10) == [["a", "b"]]


def test_statistic_is_the_corrected_likelihood_ratio() -> None:
    law, counts = {0: 0.5, 1: 0.3, 2: 0.2}, {0: 60, 1: 25, 2: 15}
    expected = stats.power_divergence([60, 25, 15], [50, 30, 20], lambda_="log-likelihood").statistic
    correction = 1 + (1 / 0.5 + 1 / 0.3 + 1 / 0.2 - 1) / (6 * 100 * 2)
    result = g_test(counts, law)
    assert result.statistic == pytest.approx(expected / correction, rel=1e-12)
    assert result.p_value == pytest.approx(stats.chi2.sf(result.statistic, 2), rel=1e-12)
    assert (result.degrees, result.total, result.impossible) == (2, 100, 0)


def test_an_unseen_cell_counts() -> None:
    assert g_test({0: 100}, {0: 0.5, 1: 0.5}).p_value < 1e-20


def test_one_impossible_sample_is_enough() -> None:
    result = g_test({0: 10_000, 7: 1}, {0: 1.0, 7: 0.0})
    assert (result.p_value, result.impossible) == (0.0, 1)


def test_a_certain_outcome_passes() -> None:
    assert g_test({3: 50}, {3: 1.0}).p_value == 1.0


@pytest.mark.parametrize("law", [{0: 0.5, 1: 0.4}, {0: 1.5, 1: -0.5}, {0: math.nan, 1: 1.0}])
def test_what_is_no_law_is_refused(law: dict[int, float]) -> None:
    with pytest.raises(ValueError, match="sum to one"):
        g_test({0: 100}, law)


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="can't fill"):
        g_test({0: 5}, {0: 1.0})


@pytest.mark.parametrize(("cells", "total"), [(6, 200), (100, 2_000), (500, 2_500)])
def test_calibrated_under_the_law(cells: int, total: int) -> None:
    """False alarms at 5 % and 1 % are as frequent as stated (4 sigma), also where most cells are pooled."""
    law = skewed_law(cells)
    generator = np.random.default_rng(20)
    runs = 3_000
    p_values = np.array([g_test(sample(law, total, generator), law).p_value for _ in range(runs)])
    for level in (0.05, 0.01):
        slack = 4 * math.sqrt(level * (1 - level) / runs)
        assert abs((p_values < level).mean() - level) < slack
    assert stats.kstest(p_values, "uniform").pvalue > 1e-4


def test_powerful_under_a_stated_alternative() -> None:
    """At the size that `sample_size` names, a law 3 % off in total variation falls as often as promised."""
    law = skewed_law(20)
    alternative = {k: mass + (0.003 if k < 10 else -0.003) for k, mass in law.items()}
    total = sample_size(law, alternative, alpha=1e-4, wanted_power=0.9)
    assert power(law, alternative, total, 1e-4) == pytest.approx(0.9, abs=0.01)
    generator = np.random.default_rng(21)
    runs = 500
    caught = np.mean([g_test(sample(alternative, total, generator), law).p_value < 1e-4 for _ in range(runs)])
    assert abs(caught - 0.9) < 4 * math.sqrt(0.9 * 0.1 / runs) + 0.01


def test_power_grows_with_samples_and_is_the_level_under_the_law() -> None:
    law, alternative = {0: 0.5, 1: 0.5}, {0: 0.52, 1: 0.48}
    powers = [power(law, alternative, total, 1e-3) for total in (100, 1_000, 10_000, 100_000)]
    assert powers == sorted(powers)
    assert powers[-1] > 0.999
    assert power(law, law, 10_000, 1e-3) == pytest.approx(1e-3)


def test_power_counts_impossible_mass() -> None:
    assert power({0: 1.0}, {0: 0.999, 1: 0.001}, 1_000, 1e-4) == pytest.approx(1 - 0.999**1_000)


def test_no_sample_tells_a_law_from_itself() -> None:
    with pytest.raises(ValueError, match="can't be told"):
        sample_size({0: 0.5, 1: 0.5}, {0: 0.5, 1: 0.5}, 1e-4)


def test_holm_steps_down() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005], 0.05) == [True, False, False, True]
    assert holm([0.04, 0.01], 0.05) == [True, True]
    assert holm([], 0.05) == []


@pytest.mark.parametrize("p_value", [math.nan, -0.1, 1.1])
def test_holm_refuses_what_is_no_p_value(p_value: float) -> None:
    with pytest.raises(ValueError, match=r"in \[0, 1\]"):
        holm([p_value, 0.0], 0.05)


def test_holm_keeps_the_family_level() -> None:
    generator = np.random.default_rng(22)
    runs = 4_000
    alarms = np.mean([any(holm(generator.random(12).tolist(), 0.05)) for _ in range(runs)])
    assert abs(alarms - 0.05) < 4 * math.sqrt(0.05 * 0.95 / runs)


def test_marginal_sums_over_the_rest() -> None:
    law = {(0, 1): 0.25, (0, 0): 0.25, (1, 1): 0.3, (2,): 0.2}
    assert marginal(law, 0) == pytest.approx({0: 0.5, 1: 0.3, 2: 0.2})
    assert marginal(law, 1) == pytest.approx({1: 0.55, 0: 0.25, None: 0.2})


def test_bootstrap_interval_covers_the_true_ratio() -> None:
    generator = np.random.default_rng(23)
    runs, covered = 200, 0
    for seed in range(runs):
        b = generator.uniform(1, 3, size=25)
        a = b * 1.1 * np.exp(generator.normal(0, 0.2, size=25))
        interval = bootstrap_ratio_interval(list(zip(a, b, strict=True)), resamples=500, seed=seed)
        assert interval.low <= interval.median <= interval.high
        covered += interval.low <= 1.1 <= interval.high
    assert covered / runs > 0.9


def test_bootstrap_interval_of_values_of_either_sign() -> None:
    interval = bootstrap_median_interval([-3.0, -1.0, 0.0, 1.0, 2.0])
    assert interval.median == 0.0
    assert interval.low < 0.0 < interval.high


@pytest.mark.parametrize("values", [[], [1.0, float("nan")], [float("inf")]])
def test_bootstrap_refuses_what_has_no_median(values: list[float]) -> None:
    with pytest.raises(ValueError, match="finite"):
        bootstrap_median_interval(values)


def test_bootstrap_interval_of_equal_ratios_is_a_point() -> None:
    interval = bootstrap_ratio_interval([(2.0, 1.0), (4.0, 2.0), (6.0, 3.0)])
    assert (interval.median, interval.low, interval.high) == (2.0, 2.0, 2.0)


@pytest.mark.parametrize("pairs", [[], [(1.0, 0.0)], [(math.inf, 1.0)], [(-1.0, 1.0)]])
def test_bootstrap_refuses_what_has_no_ratio(pairs: list[tuple[float, float]]) -> None:
    with pytest.raises(ValueError, match="positive"):
        bootstrap_ratio_interval(pairs)
