"""Freed slots keep what their session committed, for a session that begins alike."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from draftproof.engine.text import TextStream
from draftproof.sampling.params import SamplingParams
from draftproof.testing.table import ByteTokenizer
from target_service.admission import Admission, common_prefix
from target_service.session import Session

TOKENIZER = ByteTokenizer(27, first_byte=ord("a"))


def session(tokens: Sequence[int]) -> Session:
    return Session(
        key=(None, 1),
        epoch=1,
        request_id="",
        prompt_ids=list(tokens),
        output_ids=[],
        params=SamplingParams(),
        request_key=bytes(32),
        weights_version=0,
        trace_top=None,
        max_new=100,
        text=TextStream(TOKENIZER, ()),
        stop_ids=frozenset(),
        deliver=lambda frame: None,
    )


def enter(admission: Admission, tokens: Sequence[int]) -> Session:
    made = session(tokens)
    admission.enter(made, 0.0)
    admission.admit(0.0)
    return made


def run(admission: Admission, tokens: Sequence[int], cached: int | None = None) -> int:
    """A session from its start to its end; returns its slot."""
    made = enter(admission, tokens)
    slot = made.slot
    assert slot is not None
    made.cached = len(tokens) - 1 if cached is None else cached
    admission.leave(made, 0.0)
    return slot


def slots(count: int) -> Admission:
    return Admission(count, 8, 1.0, reuse=True)


def test_a_session_starts_from_the_longest_common_beginning() -> None:
    admission = slots(3)
    kept = [run(admission, tokens) for tokens in ([1, 2, 3, 4, 5], [1, 9, 9, 9, 9], [7, 7])]
    assert sorted(kept) == [0, 1, 2], "an empty slot before one that would lose its text"
    found = enter(admission, [1, 2, 3, 4, 6, 6])
    assert (found.slot, found.cached) == (kept[0], 4)
    found = enter(admission, [1, 9, 9, 5])
    assert (found.slot, found.cached) == (kept[1], 3)
    found = enter(admission, [5, 5])
    assert (found.slot, found.cached) == (kept[2], 0)


def test_the_last_token_is_fed_in_any_case() -> None:
    admission = slots(1)
    run(admission, [1, 2, 3, 4])
    assert enter(admission, [1, 2, 3]).cached == 2


def test_only_what_was_cached_is_kept() -> None:
    admission = slots(1)
    run(admission, [1, 2, 3, 4, 5], cached=2)
    assert enter(admission, [1, 2, 3, 4, 5]).cached == 2


def test_a_slot_of_unknown_content_keeps_nothing() -> None:
    admission = slots(1)
    run(admission, [1, 2, 3, 4, 5], cached=0)
    assert enter(admission, [1, 2, 3, 4, 5]).cached == 0


def test_a_long_text_is_not_lost_for_a_short_beginning_while_a_slot_is_empty() -> None:
    admission = slots(2)
    long = run(admission, [1, 2, *range(3, 25)])
    other = enter(admission, [1, 2, 26, 26])
    assert other.slot != long
    assert other.cached == 0
    again = enter(admission, [1, 2, *range(3, 26)])
    assert (again.slot, again.cached) == (long, 23)


def test_without_a_match_the_one_free_for_longest_goes_first() -> None:
    admission = slots(2)
    first, second = run(admission, [1, 1, 1]), run(admission, [2, 2, 2])
    assert enter(admission, [3, 3]).slot == first
    assert enter(admission, [4, 4]).slot == second


def test_without_reuse_nothing_is_kept() -> None:
    admission = Admission(1, 8, 1.0)
    run(admission, [1, 2, 3])
    assert enter(admission, [1, 2, 3]).cached == 0


def test_a_slot_comes_back_with_its_pass() -> None:
    admission = slots(1)
    running = enter(admission, [1, 2, 3])
    running.cached, running.in_flight = 2, True
    admission.leave(running, 0.0)
    late = enter(admission, [1, 2, 5])
    assert late.slot is None
    admission.landed(running, 0.0)
    assert admission.admit(0.0) == [late]
    assert late.cached == 2


@pytest.mark.parametrize("seed", range(20))
def test_common_prefix(seed: int) -> None:
    luck = random.Random(seed)
    a = [luck.randrange(3) for _ in range(luck.randrange(40))]
    b = a[: luck.randrange(len(a) + 1)] + [luck.randrange(3) for _ in range(luck.randrange(10))]
    expected = 0
    while expected < min(len(a), len(b)) and a[expected] == b[expected]:
        expected += 1
    assert common_prefix(a, b) == expected
