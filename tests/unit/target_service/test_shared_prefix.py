"""A session that begins like a running one copies its KV rather than compute it again."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from draftproof.engine.interface import Row
from draftproof.verification.intake import Intake
from target_service.admission import Admission
from target_service.schedule import PassLimits, plan
from target_service.session import PendingRound, Session, State
from tests.unit.target_service.test_prefix_reuse import enter, slots

LIMITS = PassLimits(prefill_chunk=8)


def with_round(session: Session, proposals: Sequence[int] = (30, 31)) -> Session:
    session.pending = PendingRound(1, Intake(list(proposals), [], None, True), 0)
    return session


def found(session: Session) -> tuple[Session | None, int]:
    return session.donor, session.shared if session.donor else 0


def test_samples_of_one_prompt_wait_for_the_first_and_start_from_its_kv() -> None:
    admission = slots(4)
    prompt = list(range(20))
    first, second, third = (with_round(enter(admission, prompt)) for _ in range(3))
    assert found(first) == (None, 0)
    assert found(second) == found(third) == (first, 19), "the last token is fed in any case"
    assert [planned.session for planned in plan(admission.active, LIMITS)] == [first]
    assert not second.is_runnable
    assert second.prefill_left() == 19
    first.cached = 16
    assert [planned.session for planned in plan(admission.active, LIMITS)] == [first]
    first.cached = 19
    rows = plan(admission.active, LIMITS)
    assert [planned.row for planned in rows] == [Row(s.slot, 19, [19, 30, 31], 3) for s in (first, second, third)]
    assert [planned.copy_from for planned in rows] == [None, first.slot, first.slot]
    assert second.is_runnable
    assert second.prefill_left() == 0


def test_what_follows_the_common_beginning_is_fed_in_chunks() -> None:
    admission = slots(2)
    first = enter(admission, [*range(12), 1, 1, 1])
    first.cached = 14
    second = with_round(enter(admission, [*range(12), *[2] * 10]))
    assert found(second) == (first, 12)
    (planned,) = plan([second], LIMITS)
    assert (planned.row, planned.copy_from) == (Row(second.slot, 12, [2] * 4, 0), first.slot)
    assert not planned.verifies


@pytest.mark.parametrize(("common", "shares"), [(9, False), (10, True)])
def test_a_beginning_that_is_still_being_computed_must_be_worth_the_wait(common: int, shares: bool) -> None:
    admission = slots(2)
    first = enter(admission, [*range(common), *[5] * 30])
    text = [*range(common), *[6] * (21 - common)]
    assert found(enter(admission, text)) == ((first, common) if shares else (None, 0))


def test_a_computed_beginning_is_shared_however_short() -> None:
    admission = slots(2)
    first = enter(admission, [*range(3), *[5] * 30])
    first.cached = 10
    assert found(enter(admission, [*range(3), *[6] * 30])) == (first, 3)


def test_the_longest_beginning_counts_and_more_than_the_slot_holds_itself() -> None:
    admission = slots(4)
    short, long = enter(admission, [1, 2, 9, 9, 9]), enter(admission, [1, 2, 3, 4, 9])
    short.cached = long.cached = 4
    assert found(enter(admission, [1, 2, 3, 4, 5])) == (long, 4)
    kept = slots(2)
    gone, here = enter(kept, [1, 2, 3, 4]), enter(kept, [1, 2, 3, 9])
    gone.cached = here.cached = 3
    kept.leave(gone, 0.0)
    again = enter(kept, [1, 2, 3, 9])
    assert again.cached == 3, "of the slot's own"
    assert found(again) == (None, 0)


def test_nobody_waits_for_tokens_that_the_donor_s_peer_has_to_ask_for() -> None:
    admission = slots(2)
    first = enter(admission, [1, 2, 3, 4])
    assert found(enter(admission, [1, 2, 3, 4, 5])) == (first, 3)
    admission = slots(2)
    first = enter(admission, [1, 2, 3, 4])
    first.cached = 4
    assert found(enter(admission, [1, 2, 3, 4, 5])) == (first, 4), "unless they are there"


def test_a_donor_that_leaves_is_not_waited_for() -> None:
    admission = slots(3)
    first = enter(admission, list(range(20)))
    second, third = (with_round(enter(admission, list(range(20)))) for _ in range(2))
    first.cached = 19
    assert second.prefill_left() == 0
    first.in_flight = True
    admission.leave(first, 0.0)
    assert first.state is State.CLOSED
    assert first.slot is not None, "its pass is running"
    assert found(second) == found(third) == (None, 0)
    assert second.prefill_left() == 19
    late = slots(3)
    first = enter(late, list(range(20)))
    first.in_flight = True
    late.leave(first, 0.0)
    assert found(enter(late, list(range(20)))) == (None, 0)


def test_other_weights_end_sharing() -> None:
    admission = slots(2)
    first, second = (enter(admission, list(range(20))) for _ in range(2))
    first.cached = 19
    for session in (first, second):
        session.turn(1, b"new")
    assert found(second) == (None, 0)
    assert second.prefill_left() == 19


def test_without_reuse_nothing_is_shared() -> None:
    admission = Admission(2, 8, 1.0)
    first = enter(admission, list(range(20)))
    first.cached = 19
    assert found(enter(admission, list(range(20)))) == (None, 0)
