"""Copies of the text itself: proposed before any drafter is asked, from committed tokens alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from prometheus_client import CollectorRegistry

from draft_service.copying import Copier
from draft_service.drafters.interface import OpenBlock
from draft_service.drafters.ngram import NgramDrafter
from draft_service.loop import DraftLoop
from draftproof.metrics.draft import DraftMetrics
from draftproof.sampling.draft_q import OneHot
from draftproof.sampling.params import Rule, SamplingParams
from draftproof.serving.drafting import DraftSequence, Outlook, Proposal
from draftproof.serving.model_thread import ModelThread


def sequence(tokens: Sequence[int], rule: Rule = Rule.TOKEN) -> DraftSequence:
    return DraftSequence(list(tokens), SamplingParams(rule=rule), bytes(32))


def ids(proposals: Sequence[Proposal]) -> list[int]:
    assert all(p.q == OneHot(p.token_id) for p in proposals)
    return [p.token_id for p in proposals]


REPEATS = [1, 2, 3, 4, 5, 6, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("tokens", "copied", "outlook"),
    [
        (REPEATS, [5, 6, 1], Outlook.COPY),
        ([1, 2, 3, 4, 9, 2, 3, 4], [], Outlook.USUAL),
        ([7] * 5, [7, 7, 7], Outlook.COPY),
        ([], [], Outlook.USUAL),
    ],
)
def test_a_long_match_is_copied_and_a_short_one_is_not(tokens: list[int], copied: list[int], outlook: Outlook) -> None:
    of = sequence(tokens)
    assert ids(Copier().propose(of, 3)) == copied
    assert Copier().outlook(of) is outlook


def test_without_a_model_there_is_nothing_else() -> None:
    assert Copier(2, 4, alone=True).outlook(sequence([1, 2, 3])) is Outlook.NOTHING
    assert Copier(2, 4, alone=True).outlook(sequence([1, 2, 3, 1, 2])) is Outlook.COPY


def test_it_follows_the_committed_text_and_forgets_it() -> None:
    copier, of = Copier(), sequence([1, 2, 3, 4, 5])
    assert copier.outlook(of) is Outlook.USUAL
    of.output_ids.extend([1, 2, 3, 4])
    assert ids(copier.propose(of, 2)) == [5, 1]
    copier.release(of)
    assert ids(copier.propose(of, 2)) == [5, 1]


def test_a_tree_is_not_copied() -> None:
    assert Copier().outlook(sequence(REPEATS, Rule.TREE)) is Outlook.USUAL
    assert not Copier().propose(sequence(REPEATS, Rule.TREE), 3)


async def test_the_drafter_is_asked_only_where_there_is_nothing_to_copy() -> None:
    class Watched(NgramDrafter):
        asked = 0

        def step(self, blocks: Sequence[OpenBlock]) -> None:
            self.asked += 1
            super().step(blocks)

    drafter, thread = Watched(), ModelThread("draft")
    loop = DraftLoop(drafter, thread, DraftMetrics(CollectorRegistry()), copier=Copier())
    task = asyncio.create_task(loop.run())
    try:
        of = sequence(REPEATS)
        assert loop.outlook(of) is Outlook.COPY
        assert ids(await loop.propose(of, 3)) == [5, 6, 1]
        assert drafter.asked == 0
        of = sequence([1, 2, 3, 1, 2])
        assert loop.outlook(of) is Outlook.USUAL
        assert ids(await loop.propose(of, 1)) == [3]
        assert drafter.asked == 1
        loop.release(of)
    finally:
        task.cancel()
        thread.stop()
