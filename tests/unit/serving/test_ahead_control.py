"""Whether to draft ahead, by what cycles take."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from draftproof.serving.ahead import AheadControl

GAMMA = 4


def rounds(control: AheadControl, count: int, seconds: Callable[[bool], float], gamma: int = GAMMA) -> list[bool]:
    chosen = []
    for _ in range(count):
        ahead = control.choose()
        control.learn(gamma, ahead, seconds(ahead))
        chosen.append(ahead)
    return chosen


def noisy(of: dict[bool, float], seed: int = 0, noise: float = 0.2) -> Callable[[bool], float]:
    source = random.Random(seed)
    return lambda ahead: of[ahead] * source.uniform(1 - noise, 1 + noise) * (20 if source.random() < 0.01 else 1)


@pytest.mark.parametrize("fixed", [True, False])
def test_fixed(fixed: bool) -> None:
    assert set(rounds(AheadControl(fixed), 500, noisy({True: 1.0, False: 0.1}))) == {fixed}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("with_it", "best"), [(0.8, True), (1.2, False), (5.0, False)])
def test_the_quicker_way_is_found_and_kept(with_it: float, best: bool, seed: int) -> None:
    chosen = rounds(AheadControl(), 2000, noisy({True: with_it, False: 1.0}, seed))
    assert chosen[64:].count(best) / len(chosen[64:]) > 0.95


def test_what_makes_no_difference_is_left_alone() -> None:
    chosen = rounds(AheadControl(), 2000, lambda ahead: 1.0)
    assert chosen[64:].count(False) / len(chosen[64:]) > 0.95


@pytest.mark.parametrize("first", [True, False])
def test_a_change_is_noticed(first: bool) -> None:
    control = AheadControl()
    good, bad = {True: 0.8, False: 1.0}, {True: 1.2, False: 1.0}
    rounds(control, 1000, noisy(good if first else bad))
    chosen = rounds(control, 4000, noisy(bad if first else good, 1))
    assert chosen[-500:].count(not first) > 450


def test_cycles_of_different_gammas_are_not_compared() -> None:
    """Longer blocks take longer; if they happened to go out in stretches of one way, that would look like its fault."""
    control = AheadControl()
    for i in range(64):
        ahead = control.choose()
        # ahead by 10 % at either length, but most long ones fall to it
        gamma = 8 if ahead is (i % 8 != 0) else 2
        control.learn(gamma, ahead, gamma * (0.9 if ahead else 1.0))
    assert control.gain() == pytest.approx(0.1)
