"""Planning and judging several cases together."""

from __future__ import annotations

import numpy as np
import pytest

from draftproof.certify.verdict import judge, plan

LAWS = {f"case {i}": {(t,): 1 / 20 for t in range(20)} for i in range(4)}


def sampled(total: int, seed: int, law: list[float]) -> dict[tuple[int, ...], int]:
    counts = np.random.default_rng(seed).multinomial(total, law)
    return {(t,): int(count) for t, count in enumerate(counts)}


def test_all_cases_are_judged_together() -> None:
    planned = plan(LAWS, tv=0.1, alpha=1e-3, power=0.99)
    assert all(one.power >= 0.99 and one.findable <= 0.1 and one.cells == 20 for one in planned)
    total = planned[0].total
    honest = [1 / 20] * 20
    # a total variation of 0.1: half of the tokens gain what the others lose
    bent = [0.06] * 10 + [0.04] * 10
    judged = judge(planned, [sampled(total, i, bent if i == 2 else honest) for i in range(4)], 1e-3)
    assert [one.failed for one in judged] == [False, False, True, False]
    assert all(one.bound <= 0.1 for one in judged if not one.failed)
    assert judged[2].bound > 0.1
    assert judged[0].seen == pytest.approx(judged[0].noise, rel=0.5)
    assert sum(cell.observed for cell in judged[0].cells) == total


def test_a_token_that_the_law_forbids_fails_its_case() -> None:
    planned = plan({"greedy": {(7,): 1.0}}, tv=0.05, alpha=1e-3, power=0.99)
    assert planned[0].total == 90
    assert not judge(planned, [{(7,): 90}], 1e-3)[0].failed
    (one,) = judge(planned, [{(7,): 89, (3,): 1}], 1e-3)
    assert (one.failed, one.bound, one.test.impossible) == (True, 1.0, 1)


def test_more_tests_need_more_samples() -> None:
    (alone,) = plan({"one": LAWS["case 0"]}, tv=0.1, alpha=1e-3, power=0.99)
    assert plan(LAWS, tv=0.1, alpha=1e-3, power=0.99)[0].total > alone.total


def test_a_fixed_count_keeps_its_own_power() -> None:
    (one,) = plan({"one": LAWS["case 0"]}, tv=0.1, alpha=1e-3, power=0.99, samples=300)
    assert one.total == 300
    assert one.power < 0.5
    assert one.findable > 0.1


def test_other_samples_than_were_planned_are_refused() -> None:
    planned = plan({"one": LAWS["case 0"]}, tv=0.1, alpha=1e-3, power=0.99)
    with pytest.raises(ValueError, match="were planned"):
        judge(planned, [{(0,): 5}], 1e-3)
