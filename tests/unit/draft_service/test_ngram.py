"""Prompt lookup: what followed when the last tokens stood in the text before."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from draft_service.drafters.interface import OpenBlock
from draft_service.drafters.ngram import NgramDrafter
from draftproof.errors import ConfigError
from draftproof.sampling.draft_q import OneHot
from draftproof.sampling.params import SamplingParams
from draftproof.serving.drafting import DraftSequence


def propose(drafter: NgramDrafter, of: DraftSequence, gamma: int = 3) -> list[int]:
    block = OpenBlock(of, gamma)
    drafter.step([block])
    assert block.ended
    assert all(p.q == OneHot(p.token_id) for p in block.proposals)
    return [p.token_id for p in block.proposals]


def sequence(tokens: Sequence[int]) -> DraftSequence:
    return DraftSequence(list(tokens), SamplingParams(), bytes(32))


def slow_lookup(tokens: list[int], gamma: int, longest: int = 4, shortest: int = 2) -> list[int]:
    """The definition, by scanning."""
    for n in range(longest, shortest - 1, -1):
        suffix = tokens[-n:]
        for end in range(len(tokens) - 1, n - 1, -1):
            if len(tokens) >= n and tokens[end - n : end] == suffix:
                text = list(tokens)
                for i in range(gamma):
                    text.append(text[end + i])
                return text[len(tokens) :]
    return []


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([1, 2, 3, 4, 5, 1, 2], [3, 4, 5]),
        ([1, 2, 3, 1, 2, 4, 1, 2], [4, 1, 2]),
        ([9, 1, 2, 3, 8, 1, 2, 4, 9, 1, 2], [3, 8, 1]),
        ([1, 2, 1, 2], [1, 2, 1]),
        ([7, 7, 7], [7, 7, 7]),
        ([1, 2, 3, 4], []),
        ([1], []),
    ],
)
def test_examples(tokens: list[int], expected: list[int]) -> None:
    assert propose(NgramDrafter(), sequence(tokens)) == expected
    assert slow_lookup(tokens, 3) == expected


def test_growing_texts_equal_the_definition() -> None:
    luck = random.Random(0)
    for _ in range(20):
        drafter, of = NgramDrafter(), sequence([luck.randrange(3) for _ in range(luck.randrange(1, 6))])
        for _ in range(25):
            gamma = luck.randrange(1, 5)
            assert propose(drafter, of, gamma) == slow_lookup([*of.prompt_ids, *of.output_ids], gamma)
            of.output_ids += [luck.randrange(3) for _ in range(luck.randrange(1, 4))]


def test_sequences_don_t_mix_and_are_forgotten() -> None:
    drafter = NgramDrafter()
    a, b = sequence([1, 2, 3, 1, 2]), sequence([1, 2])
    assert propose(drafter, a)[0] == 3
    assert propose(drafter, b) == []
    drafter.release(a)
    drafter.release(a)
    assert list(drafter._indexes) == [b]


@pytest.mark.parametrize(("longest", "shortest"), [(1, 2), (3, 0)])
def test_lengths_must_fit(longest: int, shortest: int) -> None:
    with pytest.raises(ConfigError, match="ngram"):
        NgramDrafter(longest, shortest)
