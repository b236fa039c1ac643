"""Workers that die or fall silent in the middle of many streams: the same tokens, none lost, none twice."""

from __future__ import annotations

import asyncio
import random

import pytest

from draftproof import AsyncClient, Completion
from tests.integration.orchestrator.conftest import Build
from tests.integration.orchestrator.harness import Cluster, check_same, requests
from tests.integration.services.harness import Node, until

STREAMS = 32


async def undisturbed(client: AsyncClient, count: int = STREAMS, tokens: int = 48) -> list[Completion]:
    return await asyncio.gather(*(client.generate(**request) for request in requests(count, tokens)))


async def tokens_committed(cluster: Cluster, count: int) -> None:
    begun = cluster.app._door.totals.committed
    await until(lambda: cluster.app._door.totals.committed >= begun + count)


@pytest.mark.parametrize("round", range(2))
async def test_streams_survive_the_death_of_a_draft_a_target_and_all_of_a_kind(cluster: Build, round: int) -> None:
    built = await cluster(targets=2, drafts=2)
    luck = random.Random(round)
    client = built.client()
    expected = await undisturbed(client)

    async def disturb() -> None:
        await tokens_committed(built, luck.randrange(40, 200))
        await built.kill(built.drafts[luck.randrange(2)])
        await tokens_committed(built, luck.randrange(40, 200))
        await built.kill(built.targets[luck.randrange(2)])

    found, _ = await asyncio.gather(undisturbed(client), disturb())
    for completion, same in zip(found, expected, strict=True):
        check_same(completion, same)
    stats = await built.stats()
    assert stats.fallbacks["draft_lost"] > 0
    assert stats.fallbacks["target_lost"] > 0
    assert stats.committed == 2 * STREAMS * 48
    assert stats.finished == 2 * STREAMS
    assert not stats.failed


@pytest.mark.parametrize("kind", ["drafts", "targets"])
async def test_streams_outlive_all_workers_of_a_kind(cluster: Build, kind: str) -> None:
    built = await cluster(targets=2, drafts=2)
    client = built.client()
    expected = await undisturbed(client)

    async def disturb() -> None:
        nodes: list[Node] = getattr(built, kind)
        await tokens_committed(built, 200)
        await asyncio.gather(*(built.kill(node) for node in nodes))
        await asyncio.sleep(0.3)
        await built.restart(nodes, 1)

    found, _ = await asyncio.gather(undisturbed(client), disturb())
    for completion, same in zip(found, expected, strict=True):
        check_same(completion, same)
    stats = await built.stats()
    assert not stats.failed
    assert stats.fallbacks["draft_lost" if kind == "drafts" else "target_lost"] > 0
