"""Bets at even odds: wealth can't be expected to grow on what is as it should be, and does on what isn't."""

from __future__ import annotations

import math

import numpy as np
import pytest

from draftproof.audit.bets import Bets, DriftBets, UniformBets

RUNS, STEPS, BATCH, LEVEL = 150, 30, 25, 0.05


def test_every_stake_is_a_density() -> None:
    """Before anything was seen and after: E[wealth after a draw] = wealth before it, for each strategy."""
    bets = UniformBets()
    rng = np.random.default_rng(1)
    for _ in range(5):
        assert np.allclose(bets.densities().mean(axis=1), 1.0, atol=1e-12)
        bets.observe(rng.beta(2, 5, size=100))


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (-0.25, 0.5), (-2.0, 0.125)])
def test_a_bet_on_a_drift_has_even_odds(low: float, high: float) -> None:
    """Any two values with mean 0."""
    bound = 2.0
    chance = -low / (high - low)
    wealth = 0.0
    for value, probability in ((low, 1 - chance), (high, chance)):
        bets = DriftBets(bound)
        bets.observe(np.array([value]))
        wealth += probability * math.exp(bets.log_wealth)
    assert wealth == pytest.approx(1.0, abs=1e-12)


def ruined(make: type[Bets] | object, draw: object, *, peeking: bool = False) -> float:
    """Share of honest runs in which wealth ever reaches 1 / LEVEL."""
    rng = np.random.default_rng(7)
    alarms = 0
    for _ in range(RUNS):
        bets = make()  # type: ignore[operator]
        highest = 0.0
        for _ in range(STEPS):
            values = draw(rng)  # type: ignore[operator]
            if peeking:
                bets._seen += np.bincount((values * 64).astype(int), minlength=64)
                bets._stakes = bets._log_stakes()
            bets.observe(values)
            highest = max(highest, bets.log_wealth)
        alarms += highest >= math.log(1 / LEVEL)
    return alarms / RUNS


def test_honest_runs_alarm_no_more_often_than_promised_and_stakes_that_peek_do() -> None:
    assert ruined(UniformBets, lambda rng: rng.random(BATCH)) <= LEVEL
    assert ruined(lambda: DriftBets(1.0), lambda rng: (rng.random(BATCH) < 0.3) - 0.3) <= LEVEL
    assert ruined(UniformBets, lambda rng: rng.random(BATCH), peeking=True) > 0.5


@pytest.mark.parametrize("direction", [1, -1])
def test_a_drift_of_a_twentieth_is_found(direction: int) -> None:
    rng = np.random.default_rng(3)
    bets = DriftBets(1.0)
    taken = 0
    while bets.log_wealth < 18:
        bets.observe(direction * ((rng.random(100) < 0.35) - 0.3))
        taken += 100
    assert taken < 10_000
    assert bets.deviation == pytest.approx(direction * 0.05, abs=0.02)


def test_a_bent_histogram_is_found_and_measured() -> None:
    rng = np.random.default_rng(4)
    bets = UniformBets()
    taken = 0
    while bets.log_wealth < 18:
        bets.observe(rng.beta(1.0, 1.3, size=100))
        taken += 100
    assert taken < 4_000
    exact = 0.5 * sum(abs((1 - i / 16) ** 1.3 - (1 - (i + 1) / 16) ** 1.3 - 1 / 16) for i in range(16))
    assert bets.deviation == pytest.approx(exact, abs=0.05)


def test_impossible_values_ruin_no_arithmetic() -> None:
    """A faulty verifier may count anything."""
    drift, uniform = DriftBets(1.0), UniformBets()
    for _ in range(2):
        drift.observe(np.full(100, 7.0))
        uniform.observe(np.full(100, 1.0))
    assert 20 < drift.log_wealth < math.inf
    assert 20 < uniform.log_wealth < math.inf


def test_nothing_seen_leaves_everything_as_it_was() -> None:
    for bets in (DriftBets(1.0), UniformBets()):
        bets.observe(np.empty(0))
        assert (bets.log_wealth, bets.deviation) == (0.0, 0.0)
