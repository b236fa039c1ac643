"""What a target's audit makes of committed rounds: whose account they feed, with what, and what an alarm leads to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from draftproof.audit.account import SETTLE_TOKENS, Check
from draftproof.audit.transform import Interval
from draftproof.metrics.target import TargetMetrics
from draftproof.verification.evidence import Seen
from draftproof.verification.intake import Intake
from draftproof.verification.round import RoundResult
from target_service.audit import MAX_DRAFTERS, ROUNDS_PER_PASS, Audit
from target_service.session import PendingRound
from tests.unit.target_service.test_session import make

HONEST = Interval(0.0, 0.999)
TOP = Interval(0.0, 0.1)
"""Of a token in the upper tenth of its distribution; always there is where no honest draw stays."""


class Case:
    """An audit, and rounds of three tokens for it."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.audit = Audit(4, TargetMetrics(self.registry, 4).audit)

    def rounds(
        self,
        count: int,
        drafter: str = "d@h",
        sent: Interval = HONEST,
        output: Interval = HONEST,
        emitted: int = 3,
        overlaps: float = 1.0,
        **params: Any,
    ) -> None:
        session = replace(make(**params), drafter=drafter, audited=True)
        for _ in range(count):
            self.audit.observe(session, pending(sent), result(output, overlaps), emitted)

    def count(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"draftproof_{name}", labels)

    def wealth(self, check: Check, drafter: str = "d@h") -> float | None:
        return self.count("audit_log_wealth", test=check, drafter=drafter)


def pending(sent: Interval, audited: bool = True) -> PendingRound:
    return PendingRound(1, Intake([1, 2], [], None, True), 0, audited=audited, sent=[sent] * 2)


def result(output: Interval, overlaps: float) -> RoundResult:
    return RoundResult(
        accepted=2,
        next_id=5,
        examined=2,
        overlaps=[overlaps, overlaps],
        finite=True,
        seen=Seen([output] * 3, [0.0, 0.0]),
    )


@pytest.fixture
def case() -> Case:
    return Case()


def test_a_draft_that_lies_is_quarantined_and_the_event_says_why(case: Case) -> None:
    with capture_logs() as events:
        case.rounds(200, sent=TOP)
        case.rounds(200, drafter="other@h")
    assert case.audit.quarantined("d@h")
    assert not case.audit.quarantined("other@h")
    alarm, quarantine = events
    assert (alarm["event"], alarm["drafter"], alarm["test"]) == ("audit alarm", "d@h", "proposals")
    assert SETTLE_TOKENS <= alarm["tokens"] <= 300
    assert alarm["deviation"] == pytest.approx(0.9, abs=0.05)
    assert alarm["log_e"] > 18
    assert (quarantine["event"], quarantine["drafter"]) == ("draft quarantined", "d@h")
    assert case.count("audit_alarms_total", test="proposals", drafter="d@h") == 1
    assert case.count("audit_quarantines_total", drafter="d@h") == 1
    assert case.count("audit_quarantines_total", drafter="other@h") == 0
    assert case.count("audited_tokens_total", drafter="d@h") == 600


def test_a_second_alarm_is_told_and_quarantines_nobody_twice(case: Case) -> None:
    case.rounds(200, sent=TOP, output=TOP)
    assert case.count("audit_alarms_total", test="output", drafter="d@h") == 1
    assert case.count("audit_quarantines_total", drafter="d@h") == 1


def test_the_target_alone_is_told_of_and_never_quarantined(case: Case) -> None:
    case.rounds(200, drafter="", output=TOP)
    assert case.count("audit_alarms_total", test="output", drafter="none") == 1
    assert not case.audit.quarantined("")
    assert case.count("audit_quarantines_total", drafter="none") == 0


def test_a_key_that_the_target_didn_t_make_is_no_evidence(case: Case) -> None:
    session = replace(make(), drafter="d@h")
    for _ in range(200):
        case.audit.observe(session, pending(TOP, case.audit.examines(session, 1)), result(TOP, 1.0), 3)
    assert case.count("unaudited_tokens_total", drafter="d@h") == 600
    assert case.count("audited_tokens_total", drafter="d@h") == 0
    assert [case.wealth(check) for check in Check] == [0.0] * 4


@pytest.mark.parametrize("rule", ["token", "block"])
def test_acceptance_is_held_against_what_was_expected(case: Case, rule: str) -> None:
    case.rounds(200, overlaps=0.5, rule=rule)
    assert case.count("audit_alarms_total", test="acceptance", drafter="d@h") == 1


def test_the_coupled_rule_has_no_such_test(case: Case) -> None:
    case.rounds(200, overlaps=0.5, rule="coupled")
    assert case.wealth(Check.ACCEPTANCE) == 0.0


def test_nothing_behind_a_stop_is_evidence_but_the_verdict_is_whole(case: Case) -> None:
    case.rounds(400, emitted=1)
    account = case.audit._accounts["d@h"]
    assert account.tokens == 400
    assert account.bets[Check.OUTPUT]._seen.sum() == pytest.approx(400, abs=SETTLE_TOKENS)  # type: ignore[attr-defined]
    assert account.bets[Check.ACCEPTANCE].deviation == 0.0


def test_drafters_beyond_the_limit_share_an_account(case: Case) -> None:
    names = [f"{i}@h" for i in range(MAX_DRAFTERS)]
    assert [case.audit.name(name) for name in names] == names
    assert case.audit.name("one more@h") == case.audit.name("other") == "other"
    assert case.audit.name("") == "none"
    assert case.audit.name(names[0]) == names[0]
    case.rounds(200, drafter="one more@h", sent=TOP)
    assert case.audit.quarantined("and another@h")
    assert not case.audit.quarantined(names[0])


def test_where_many_share_a_pass_some_rounds_are_examined_by_chance(case: Case) -> None:
    session = replace(make(), drafter="d@h", audited=True)
    assert all(case.audit.examines(session, active) for active in range(1, ROUNDS_PER_PASS + 1) for _ in range(50))
    examined = [case.audit.examines(session, 8 * ROUNDS_PER_PASS) for _ in range(4000)]
    assert 350 < sum(examined) < 650
    for audited in examined:
        case.audit.observe(session, pending(HONEST, audited), result(HONEST, 1.0), 3)
    assert case.count("audited_tokens_total", drafter="d@h") == 3 * sum(examined)
    assert case.count("unaudited_tokens_total", drafter="d@h") == 0
