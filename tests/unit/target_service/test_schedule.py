"""Which rows a pass holds."""

from __future__ import annotations

import pytest

from draftproof.engine.interface import Row
from draftproof.verification.intake import Intake
from target_service.schedule import PassLimits, plan
from target_service.session import PendingRound, Session
from tests.unit.target_service.test_session import make


def session(slot: int, tokens: int, cached: int, proposals: int | None = None, arrived: int = 0) -> Session:
    made = make()
    made.tokens = list(range(tokens))
    made.slot, made.cached = slot, cached
    if proposals is not None:
        made.pending = PendingRound(1, Intake([100 + i for i in range(proposals)], [], None, True), arrived)
    return made


def test_a_round_feeds_its_last_token_and_its_proposals() -> None:
    (planned,) = plan([session(3, 10, 9, 2)], PassLimits())
    assert planned.verifies
    assert planned.row == Row(3, 9, [9, 100, 101], 3)


def test_an_idle_session_has_no_row() -> None:
    assert plan([session(0, 10, 9)], PassLimits()) == []


@pytest.mark.parametrize("chunk", [1, 3, 4, 100])
def test_a_prompt_comes_in_chunks_that_end_at_multiples(chunk: int) -> None:
    made = session(0, 10, 0)
    fed = []
    while made.prefill_left():
        (planned,) = plan([made], PassLimits(prefill_chunk=chunk))
        assert planned.row.logits == 0
        assert not planned.verifies
        fed += planned.row.token_ids
        made.cached = planned.row.start + len(planned.row.token_ids)
        assert made.cached % chunk == 0 or made.cached == 9
    assert fed == list(range(9)), "all but the last token, which the round feeds"


def test_chunks_end_at_multiples_wherever_they_begin() -> None:
    (planned,) = plan([session(0, 20, 6)], PassLimits(prefill_chunk=4))
    assert planned.row == Row(0, 6, [6, 7], 0)


def test_a_round_rides_on_the_last_chunk_where_it_may() -> None:
    made = session(0, 6, 4, 2)
    (planned,) = plan([made], PassLimits(prefill_chunk=4))
    assert planned.row == Row(0, 4, [4, 5, 100, 101], 3)
    (planned,) = plan([made], PassLimits(prefill_chunk=4, merge=False))
    assert planned.row == Row(0, 4, [4], 0)
    (planned,) = plan([session(0, 10, 0, 2)], PassLimits(prefill_chunk=4))
    assert not planned.verifies, "not on a chunk that isn't the last"


def test_rounds_come_first_in_order_of_arrival() -> None:
    waiting = [session(0, 10, 0), session(1, 5, 4, 1, arrived=20), session(2, 5, 4, 1, arrived=10)]
    assert [planned.row.slot for planned in plan(waiting, PassLimits())] == [2, 1, 0]


def test_the_budget_holds_but_never_stops_everything() -> None:
    waiting = [session(0, 5, 4, 3), session(1, 200, 0), session(2, 5, 4, 1, arrived=1)]
    limits = PassLimits(max_tokens=8, prefill_chunk=100)
    assert [planned.row.slot for planned in plan(waiting, limits)] == [0, 2]
    assert [planned.row.slot for planned in plan([waiting[1]], limits)] == [1], "a single row may exceed it"
    rows = plan(waiting, PassLimits(max_tokens=106, prefill_chunk=100))
    assert [planned.row.slot for planned in rows] == [0, 2, 1]
