"""What the audit catches, within how many tokens, and that it leaves honest pairs alone."""

from __future__ import annotations

import pytest
import torch

from draftproof.audit.account import Check
from draftproof.sampling.params import Rule
from draftproof.verification import drafts
from tests.exact.audited_rounds import CHEATS, HONEST, KNOWING, Draft, Rounds

RULES = [Rule.TOKEN, Rule.BLOCK]
SMALL, LARGE = 300, 49_152
WITHIN = 50_000


def from_p(p: torch.Tensor, q: object) -> torch.Tensor:
    return p.to(torch.float64, copy=True)


@pytest.mark.parametrize("vocab", [SMALL, pytest.param(LARGE, marks=pytest.mark.slow)])
@pytest.mark.parametrize("cheat", CHEATS)
def test_a_draft_that_draws_otherwise_is_caught_without_the_check_of_draws(cheat: str, vocab: int) -> None:
    alarm = Rounds(vocab, CHEATS[cheat], Rule.BLOCK, check=False).until(WITHIN)
    print(cheat, vocab, alarm)
    assert alarm is not None
    assert alarm.check is Check.PROPOSALS


@pytest.mark.parametrize("vocab", [SMALL, pytest.param(LARGE, marks=pytest.mark.slow)])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("cheat", KNOWING)
def test_a_draft_that_knows_the_numbers_is_caught_with_the_check(cheat: str, rule: Rule, vocab: int) -> None:
    """Every proposal repeats as a draw from the q it came with; places tell where q was chosen by that draw."""
    alarm = Rounds(vocab, KNOWING[cheat], rule, check=True).until(WITHIN)
    print(cheat, rule, vocab, alarm)
    assert alarm is not None
    assert (alarm.check is Check.PROPOSALS) is (cheat == "to please")


@pytest.mark.parametrize("vocab", [SMALL, pytest.param(LARGE, marks=pytest.mark.slow)])
@pytest.mark.parametrize("rule", RULES)
def test_a_target_that_draws_from_p_after_a_rejection_is_caught(
    rule: Rule, vocab: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafts, "residual", from_p)
    alarm = Rounds(vocab, HONEST, rule, check=True).until(WITHIN)
    print(rule, vocab, alarm)
    assert alarm is not None
    assert alarm.check in (Check.EXCESS, Check.OUTPUT)


def test_a_seed_said_again_would_be_evidence_against_an_honest_pair() -> None:
    """Hence a target audits only requests whose key it made: the same draws twice are one piece of evidence."""
    first = Rounds(SMALL, HONEST, Rule.TOKEN, check=True)
    alarms = first.step()
    while not alarms and first.account.tokens < WITHIN:
        again = Rounds(SMALL, HONEST, Rule.TOKEN, check=True)
        again.account = first.account
        alarms = again.step()
    assert alarms


@pytest.mark.parametrize("tokens", [4_000, pytest.param(2_000_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("rule", RULES)
def test_an_honest_pair_raises_no_alarm(rule: Rule, tokens: int) -> None:
    """Two million tokens in all, between the two rules."""
    rounds = Rounds(SMALL, Draft(), rule, check=True, seed=3)
    assert rounds.until(tokens // 2) is None
    assert all(bets.log_wealth < 8 for bets in rounds.account.bets.values())
