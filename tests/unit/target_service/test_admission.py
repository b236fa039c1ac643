"""Slots and the queue behind them."""

from __future__ import annotations

import pytest

from draftproof.errors import OverloadedError
from draftproof.verification.intake import Intake
from target_service.admission import Admission
from target_service.session import PendingRound, Session, State
from tests.unit.target_service.test_session import make


def enter(admission: Admission, count: int, now: float = 0.0) -> list[Session]:
    made = [make() for _ in range(count)]
    for session in made:
        session.cached = 2
        admission.enter(session, now)
        admission.admit(now)
        session.cached = 2
    return made


def test_slots_go_in_order_of_arrival() -> None:
    admission = Admission(2, 8, 1.0)
    a, b, c, d = enter(admission, 4)
    assert [s.state for s in (a, b, c, d)] == [State.ACTIVE, State.ACTIVE, State.QUEUED, State.QUEUED]
    assert {a.slot, b.slot} == {0, 1}
    assert admission.waiting == 2
    freed = a.slot
    admission.leave(a, 1.0)
    assert a.slot is None
    assert admission.admit(1.0) == [c]
    assert c.slot == freed
    assert c.cached == 0, "nothing of the last holder counts"
    admission.leave(d, 1.0)
    assert admission.waiting == 0
    admission.leave(b, 1.0)
    assert admission.admit(1.0) == []


def test_a_slot_whose_pass_is_running_comes_back_when_it_ends() -> None:
    admission = Admission(1, 8, 1.0)
    a, b = enter(admission, 2)
    a.in_flight = True
    admission.leave(a, 1.0)
    assert admission.admit(1.0) == []
    admission.landed(a, 2.0)
    assert admission.admit(2.0) == [b]
    admission.leave(b, 3.0)
    admission.leave(b, 3.0)
    assert sorted(admission._free) == [0], "leaving twice frees once"


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_the_queue_is_bounded(limit: int) -> None:
    admission = Admission(1, limit, 1.0)
    enter(admission, 1 + limit)
    with pytest.raises(OverloadedError) as caught:
        admission.enter(make(), 0.0)
    assert admission.waiting == limit
    assert caught.value.retry_delay is not None
    assert 0.05 <= caught.value.retry_delay <= 5
    assert caught.value.metadata == {"setting": "queue_limit", "limit": str(limit)}


def test_only_the_idle_are_evicted_longest_idle_first_and_no_more_than_needed() -> None:
    admission = Admission(4, 8, idle_evict=1.0)
    a, b, c, d = enter(admission, 4)
    a.active_at, b.active_at, c.active_at, d.active_at = 3.0, 2.0, 1.0, 0.0
    assert admission.evictable(10.0) == [], "nobody waits"
    enter(admission, 1)
    assert admission.evictable(10.0) == [d]
    d.in_flight = True
    assert admission.evictable(10.0) == [c]
    c.pending = PendingRound(1, Intake([], [], None, True), 0)
    assert admission.evictable(10.0) == [b]
    b.cached = 0
    assert admission.evictable(10.0) == [a], "a prompt is being read"
    assert admission.evictable(4.0) == [], "not idle for long enough"
    enter(admission, 2)
    b.cached = 2
    assert admission.evictable(10.0) == [b, a]
