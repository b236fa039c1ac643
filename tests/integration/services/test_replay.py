"""Earlier rollouts as drafts, through both services."""

from __future__ import annotations

from typing import Any

from draft_service.drafters.ngram import NgramDrafter
from draft_service.drafters.replay import ReplayDrafter
from draftproof import Rollout
from tests.integration.services.harness import Kit, model_drafter, table
from tests.integration.services.test_prefix_reuse import Watched

PROMPT = "abcdefghij"
N = 6


def accepted(rollouts: list[Rollout]) -> int:
    return sum(completion.stats.accepted for rollout in rollouts for completion in rollout.completions)


async def test_a_second_rollout_drafts_from_the_first(kit: Kit) -> None:
    stack = await kit.stack(engine=Watched(spread=40.0), drafter=lambda: ReplayDrafter(NgramDrafter(), 8))
    settings: dict[str, Any] = {"n": N, "max_tokens": 32, "ignore_eos": True, "gamma": 4}
    first = await stack.client.rollout([PROMPT], **settings)
    await stack.idle()
    second = await stack.client.rollout([PROMPT], **settings)
    assert accepted(second) > accepted(first) + N
    assert all(c.lossless and not c.notes for r in second for c in r.completions)
    keys = {c.request_key for r in (*first, *second) for c in r.completions}
    assert len(keys) == 2 * N


async def test_what_a_seed_promises_stays_promised(kit: Kit) -> None:
    """Its text is the same whatever was remembered, its own output and those of others."""
    stack = await kit.stack(engine=table(spread=3.0), drafter=lambda: ReplayDrafter(drafter(), 8))
    plain = await kit.stack(engine=table(spread=3.0), drafter=drafter)
    settings: dict[str, Any] = {"n": N, "max_tokens": 24, "ignore_eos": True, "seed": 5, "gamma": 4}
    (expected,) = await plain.client.rollout([PROMPT], **settings)
    await stack.client.rollout([PROMPT], n=2, max_tokens=24, ignore_eos=True)
    for _ in range(2):
        await stack.idle()
        (found,) = await stack.client.rollout([PROMPT], **settings)
        assert [c.token_ids for c in found.completions] == [c.token_ids for c in expected.completions]


async def test_greedy_texts_come_back_whole(kit: Kit) -> None:
    stack = await kit.stack(engine=Watched(), drafter=lambda: ReplayDrafter(NgramDrafter(), 8), gamma=8)
    settings: dict[str, Any] = {"temperature": 0.0, "max_tokens": 27, "ignore_eos": True, "gamma": 8}
    first = await stack.client.generate(PROMPT, **settings)
    await stack.idle()
    again = await stack.client.generate(PROMPT, **settings)
    assert again.token_ids == first.token_ids
    assert (again.stats.drafted, again.stats.accepted, again.stats.rounds) == (24, 24, 3)


def drafter() -> Any:
    return model_drafter(table(noise=0.5, spread=3.0))
