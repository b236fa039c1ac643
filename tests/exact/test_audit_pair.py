"""What the audit catches on the embedded pair: `python -m pytest -m slow -s tests/exact/test_audit_pair.py`."""

from __future__ import annotations

import os
import time

import pytest
import torch

from draftproof.audit.account import Alarm, Check
from draftproof.sampling.params import Rule
from draftproof.verification import drafts
from tests.exact.audited_pair import Models, PairRounds
from tests.exact.audited_rounds import CHEATS, HONEST, KNOWING, Draft

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]
RULES = [Rule.TOKEN, Rule.BLOCK]
WITHIN = 50_000
HONEST_SECONDS = float(os.environ.get("DRAFTPROOF_AUDIT_SECONDS", "3600"))
"""How long the honest pair runs, both rules together."""


@pytest.fixture(scope="module")
def models() -> Models:
    return Models()


def found(rounds: PairRounds, name: str, rule: Rule, within: int = WITHIN) -> Alarm:
    began = time.monotonic()
    alarm = rounds.until(within)
    wealth = {str(check): round(bets.log_wealth, 1) for check, bets in rounds.account.bets.items()}
    print(f"\n{name}, {rule}: {alarm}, {time.monotonic() - began:.0f} s, {wealth}", flush=True)
    assert alarm is not None
    return alarm


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("cheat", CHEATS)
def test_a_draft_that_draws_otherwise_is_caught_without_the_check_of_draws(
    models: Models, cheat: str, rule: Rule
) -> None:
    assert found(PairRounds(models, CHEATS[cheat], rule, check=False), cheat, rule).check is Check.PROPOSALS


@pytest.mark.parametrize("rule", RULES)
def test_a_target_that_draws_from_p_after_a_rejection_is_caught(
    models: Models, rule: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafts, "residual", lambda p, q: p.to(torch.float64, copy=True))
    alarm = found(PairRounds(models, HONEST, rule, check=True), "resamples from p", rule)
    assert alarm.check in (Check.EXCESS, Check.OUTPUT)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("cheat", KNOWING)
def test_a_draft_that_knows_the_numbers_is_caught_with_the_check(models: Models, cheat: str, rule: Rule) -> None:
    rounds = PairRounds(models, KNOWING[cheat], rule, check=True)
    # the accept numbers say little of a block's verdict, so the first one bends the block rule's output little
    within = 4 * WITHIN if rule is Rule.BLOCK and cheat == "by the accept number" else WITHIN
    assert (found(rounds, cheat, rule, within).check is Check.PROPOSALS) is (cheat == "to please")


@pytest.mark.parametrize("rule", RULES)
def test_the_honest_pair_raises_no_alarm(models: Models, rule: Rule) -> None:
    rounds, until = PairRounds(models, Draft(), rule, check=True, seed=3), time.monotonic() + HONEST_SECONDS / 2
    while time.monotonic() < until:
        assert rounds.step() == []
    wealth = {str(check): round(bets.log_wealth, 1) for check, bets in rounds.account.bets.items()}
    print(f"\nhonest, {rule}: {rounds.account.tokens} tokens in {HONEST_SECONDS / 2:.0f} s, {wealth}", flush=True)
    assert all(bets.log_wealth < 8 for bets in rounds.account.bets.values())
