"""One account: what feeds which test, when it settles, and what an alarm says."""

from __future__ import annotations

import math

import numpy as np
import pytest

from draftproof.audit.account import SETTLE_TOKENS, Account, Check, Evidence, threshold
from draftproof.audit.transform import Interval

THRESHOLD = threshold(1e-6, 16)


def account() -> Account:
    return Account(THRESHOLD, 4, np.random.default_rng(5).random)


def test_the_threshold_shares_the_false_alarms_among_all_tests_of_all_accounts() -> None:
    assert len(Check) * 16 * math.exp(-THRESHOLD) == pytest.approx(1e-6)


LIES = {
    Check.PROPOSALS: Evidence(proposals=[Interval(0.0, 0.4)], tokens=1),
    Check.ACCEPTANCE: Evidence(surplus=0.5, tokens=1),
    Check.OUTPUT: Evidence(output=[Interval(0.5, 0.3)], tokens=1),
    Check.EXCESS: Evidence(excess=[-0.3], tokens=1),
}


@pytest.mark.parametrize("check", Check)
def test_each_test_is_fed_by_its_own_evidence_and_alarms_once(check: Check) -> None:
    audited = account()
    alarms = [alarm for _ in range(5000) for alarm in audited.observe(LIES[check])]
    (alarm,) = alarms
    assert alarm.check is check
    assert alarm.log_e >= THRESHOLD
    assert 0 < alarm.tokens < 2000
    assert audited.alarms == {check: alarm}
    deviations = {Check.PROPOSALS: 0.6, Check.ACCEPTANCE: 0.5, Check.OUTPUT: 0.7, Check.EXCESS: -0.3}
    assert alarm.deviation == pytest.approx(deviations[check], abs=0.03)
    assert all(audited.bets[other].log_wealth == 0 for other in Check if other is not check)


def test_bets_are_settled_together_and_stakes_are_set_before() -> None:
    audited = account()
    audited.observe(Evidence(surplus=4.0, tokens=SETTLE_TOKENS - 1))
    assert audited.bets[Check.ACCEPTANCE].log_wealth == 0.0
    audited.observe(Evidence(surplus=4.0, tokens=1))
    assert audited.bets[Check.ACCEPTANCE].log_wealth > 0.0
    assert audited.tokens == SETTLE_TOKENS


def test_what_can_be_drawn_in_one_way_alone_is_no_evidence() -> None:
    audited = account()
    for _ in range(1000):
        audited.observe(Evidence(proposals=[Interval(0.0, 1.0)], output=[Interval(0.0, 1.0)], tokens=1))
    assert audited.bets[Check.PROPOSALS].log_wealth == audited.bets[Check.OUTPUT].log_wealth == 0.0


def test_a_token_without_mass_lies_at_the_end() -> None:
    audited = account()
    alarms = [a for _ in range(300) for a in audited.observe(Evidence(proposals=[Interval(1.0, 0.0)], tokens=1))]
    assert [alarm.check for alarm in alarms] == [Check.PROPOSALS]
