"""Earlier outputs of a prompt as drafts: which are proposed, and for whom none are."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from draft_service.drafters import replay
from draft_service.drafters.interface import OpenBlock
from draft_service.drafters.ngram import NgramDrafter
from draft_service.drafters.replay import ReplayDrafter
from draftproof.sampling.draft_q import OneHot
from draftproof.sampling.params import SamplingParams
from draftproof.serving.drafting import DraftSequence

PROMPT = [7, 8, 9]


def sequence(
    output: Sequence[int] = (), key: int = 0, prompt: Sequence[int] = PROMPT, **params: object
) -> DraftSequence:
    return DraftSequence(list(prompt), SamplingParams(**params), bytes([key] * 32), list(output))  # type: ignore[arg-type]


def drafter(*outputs: Sequence[int], most: int = 8) -> ReplayDrafter:
    """A drafter that remembers these outputs of PROMPT, made by the keys 1, 2, …"""
    made = ReplayDrafter(NgramDrafter(), most)
    for key, output in enumerate(outputs, 1):
        made.release(sequence(output, key))
    return made


def propose(of: ReplayDrafter, asking: DraftSequence, gamma: int = 3) -> list[int]:
    block = OpenBlock(asking, gamma)
    of.step([block])
    assert block.ended
    assert all(p.q == OneHot(p.token_id) for p in block.proposals)
    return [p.token_id for p in block.proposals]


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ([], [1, 2, 3]),
        ([1, 2], [3, 4, 5]),
        ([1, 2, 3, 4], [5]),
        ([1, 2, 3, 4, 5], []),
        ([1, 3], []),
        ([2], []),
    ],
)
def test_what_an_output_that_begins_alike_goes_on_with(output: list[int], expected: list[int]) -> None:
    assert propose(drafter([1, 2, 3, 4, 5]), sequence(output)) == expected


def test_most_votes_then_the_latest() -> None:
    assert propose(drafter([1, 2, 3], [1, 2, 4], [1, 5, 6]), sequence()) == [1, 2, 4], "2 has two votes, 4 is later"
    assert propose(drafter([1, 2, 3], [1, 5, 6]), sequence()) == [1, 5, 6]
    assert propose(drafter([1, 2, 3], [1, 5, 6]), sequence([1, 2])) == [3]


def test_an_output_is_not_proposed_under_the_key_that_made_it() -> None:
    remembering = drafter([1, 2, 3], [4, 5, 6])
    assert propose(remembering, sequence(key=1)) == [4, 5, 6]
    assert propose(remembering, sequence(key=2)) == [1, 2, 3]
    assert propose(drafter([1, 2, 3]), sequence(key=1)) == []


def test_other_prompts_have_other_outputs() -> None:
    assert propose(drafter([1, 2, 3]), sequence(prompt=[7, 8])) == []


@pytest.mark.parametrize(
    ("params", "replays"),
    [
        ({"rule": "lenient", "lenience": 0.5}, False),
        ({"seed": 1}, False),
        ({"seed": 1, "rule": "token"}, False),
        ({"seed": 1, "rule": "coupled"}, True),
        ({"seed": 1, "temperature": 0.0}, True),
        ({}, True),
    ],
)
def test_not_for_lossy_requests_nor_where_a_seed_promises_the_blocks(params: dict[str, object], replays: bool) -> None:
    assert propose(drafter([1, 2, 3]), sequence(**params)) == ([1, 2, 3] if replays else [])


def test_lossy_outputs_are_not_remembered_seeded_ones_are() -> None:
    remembering = ReplayDrafter(NgramDrafter(), 8)
    remembering.release(sequence([1, 2], 1, rule="lenient", lenience=0.5))
    assert propose(remembering, sequence()) == []
    remembering.release(sequence([1, 2], 1, seed=3))
    assert propose(remembering, sequence()) == [1, 2]


def test_the_latest_outputs_are_kept_one_a_key() -> None:
    assert propose(drafter([1, 1], [2, 2], [2, 3], most=2), sequence([1])) == []
    remembering = drafter([1], [5, 6], most=2)
    remembering.release(sequence([1, 2, 3], 1))  # the same request, further
    assert propose(remembering, sequence([1])) == [2, 3]
    assert propose(remembering, sequence([5])) == [6]
    remembering.release(sequence([8, 9], 3))
    assert propose(remembering, sequence([1])) == [2, 3], "it was told of last"
    assert propose(remembering, sequence([5])) == []


def test_prompts_unused_for_longest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "PROMPTS", 2)
    remembering = ReplayDrafter(NgramDrafter(), 8)
    for key, prompt in enumerate(([1], [2], [1], [3]), 1):
        remembering.release(sequence([5, 6], key, prompt))
    assert [len(propose(remembering, sequence(prompt=p))) for p in ([1], [2], [3])] == [2, 0, 2]


def test_where_none_begins_alike_the_other_drafter_proposes() -> None:
    remembering = drafter([1, 2, 3])
    asking = sequence([5, 6, 5, 6, 4, 5, 6])
    assert propose(remembering, asking) == [4, 5, 6]
    assert asking in remembering._inner._indexes  # type: ignore[attr-defined]
    remembering.release(asking)
    assert not remembering._inner._indexes  # type: ignore[attr-defined]
    assert not remembering._replaying


def test_what_is_drafted_ahead_is_the_other_drafter_s() -> None:
    remembering = drafter([1, 2, 3])
    asking = sequence()
    block = OpenBlock(sequence([1]), 3, ahead_of=asking, certain=asking.position)
    remembering.step([block])
    assert block.proposals == []


def test_an_open_block_stays_with_the_drafter_that_began_it() -> None:
    remembering = drafter([1, 2, 3])
    block = OpenBlock(sequence(), 3)
    block.proposals.append(replay.Proposal(5, OneHot(5)))
    remembering.step([block])
    assert [p.token_id for p in block.proposals] == [5]
