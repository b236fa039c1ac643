"""The formulae against hand-made numbers, and against a simulation of the same cluster."""

from __future__ import annotations

import random
import statistics
from dataclasses import replace

import pytest

from draftproof.errors import ConfigError
from draftproof.planning.forecast import forecast, leviathan, speed_up
from draftproof.planning.setup import Costs, Encoding, Link, Setup, per_position
from draftproof.planning.simulation import simulate

EXACT = Encoding("exact", 100.0, 0.0)


def one(**changes: object) -> Setup:
    """One stream at no distance: a pass of 40 ms, a draft step of 4 ms, acceptance 0.8."""
    setup = Setup(
        costs=Costs(draft_step=0.004, pass_base=0.04), link=Link(), acceptance=(0.8,), gamma=4, encoding=EXACT
    )
    return replace(setup, **changes)  # type: ignore[arg-type]


def random_setup(luck: random.Random, *, ahead: bool, shared: bool = False) -> Setup:
    """Anything between an edge draft next door and a far one, light load and heavy."""
    base = 10 ** luck.uniform(-2.3, -1)
    streams = luck.choice([1, 1, 2, 4, 8, 16, 32])
    workers = [1, 1, 2] if streams > 1 and not shared else [1]
    return Setup(
        costs=Costs(
            draft_step=base * 10 ** luck.uniform(-1.7, -0.5),
            draft_row=base * luck.choice([0, 0, 0.002, 0.01]),
            pass_base=base,
            pass_token=base * luck.choice([0.002, 0.01, 0.05]),
            overhead=0.001,
            shared=shared,
        ),
        link=Link(rtt=luck.choice([0, 0, 0.005, 0.04, 0.1]), bandwidth=luck.choice([1e9, 2e7])),
        acceptance=(luck.uniform(0.2, 0.95),),
        gamma=luck.choice([0, 1, 2, 4, 8]),
        streams=streams,
        targets=luck.choice(workers),
        drafts=luck.choice(workers),
        ahead=ahead,
    )


def test_one_stream_is_leviathans_formula() -> None:
    assert speed_up(one()) == pytest.approx(leviathan(0.8, 4, 0.1), rel=1e-9)
    assert leviathan(1.0, 4, 0.1) == pytest.approx(5 / 1.4)


def test_acceptance_by_offset_and_the_loss_of_the_encoding() -> None:
    setup = one(acceptance=(0.9, 0.5), encoding=Encoding("rough", 10, 0.1))
    assert setup.tokens_per_round == pytest.approx(1 + 0.8 + 0.8 * 0.4 + 0.8 * 0.4**2 + 0.8 * 0.4**3)


def test_distance_and_bandwidth_of_one_stream() -> None:
    setup = one(link=Link(rtt=0.03, bandwidth=8e6))
    block = 120 + 4 * 100  # bytes, a microsecond each
    assert forecast(setup).cycle == pytest.approx(0.04 + 4 * 0.004 + 0.03 + block * 1e-6, rel=1e-9)


def test_drafting_ahead_hides_drafting_where_the_guess_holds() -> None:
    setup = one(acceptance=(1.0,), link=Link(rtt=0.03), ahead=True)
    block = setup.link.seconds(setup.block_bytes)
    assert forecast(setup).cycle == pytest.approx(0.04 + 0.03 + block, rel=1e-9)
    slow = replace(setup, costs=replace(setup.costs, draft_step=0.02))
    assert forecast(slow).cycle == pytest.approx(5 * 0.02, rel=1e-6)


def test_streams_that_come_back_soon_share_every_pass() -> None:
    together = forecast(one(streams=8, gamma=0))
    assert together.batch == 8
    assert together.cycle == pytest.approx(0.04, rel=1e-6)


def test_what_limits_it() -> None:
    assert forecast(one(streams=16, costs=Costs(draft_step=1e-4, pass_base=0.01, pass_token=0.01))).limit == "target"
    assert forecast(one(streams=8, costs=Costs(draft_step=0.05, draft_row=0.04, pass_base=0.01))).limit == "draft"
    assert forecast(one(streams=8, link=Link(bandwidth=1e5))).limit == "bandwidth"
    assert forecast(one(link=Link(rtt=0.5))).limit == "distance"
    assert forecast(one(gamma=0)).limit == "target"


@pytest.mark.parametrize(("ahead", "median", "ninth"), [(False, 0.05, 0.15), (True, 0.07, 0.2)])
def test_the_simulation_agrees(ahead: bool, median: float, ninth: float) -> None:
    luck, errors = random.Random(1), []
    for _ in range(40):
        setup = random_setup(luck, ahead=ahead)
        expected, shown = forecast(setup).tokens_per_second, simulate(setup, rounds=40).tokens_per_second
        errors.append(abs(expected / shown - 1))
    assert statistics.median(errors) < median
    assert statistics.quantiles(errors, n=10)[-1] < ninth


def test_the_simulation_agrees_on_shared_cores() -> None:
    luck, errors = random.Random(2), []
    for _ in range(24):
        setup = random_setup(luck, ahead=False, shared=True)
        errors.append(abs(forecast(setup).tokens_per_second / simulate(setup, rounds=40).tokens_per_second - 1))
    assert statistics.median(errors) < 0.1


def test_a_simulation_without_luck_is_arithmetic() -> None:
    outcome = simulate(one(acceptance=(1.0,)), rounds=50)
    assert outcome.cycle == pytest.approx(0.04 + 4 * 0.004, rel=0.01)
    assert outcome.tokens_per_second == pytest.approx(5 / (0.04 + 4 * 0.004), rel=0.01)
    assert outcome.target_busy == pytest.approx(0.04 / 0.056, rel=0.02)


def test_tested_counts_make_conditional_rates() -> None:
    assert per_position((10, 8, 0), (8, 4, 0)) == (0.8, 0.5)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Costs(draft_step=-1, pass_base=1),
        lambda: Costs(draft_step=1, pass_base=0),
        lambda: Link(bandwidth=0),
        lambda: one(acceptance=(1.1,)),
        lambda: one(acceptance=()),
        lambda: one(streams=0),
    ],
)
def test_numbers_that_cannot_be_are_refused(wrong: object) -> None:
    with pytest.raises(ConfigError):
        wrong()  # type: ignore[operator]
