"""Workers that die or fall silent in the middle of many streams: the same tokens, none lost, none twice."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from torch import Tensor

from draft_service.app import DraftApp, DraftConfig, TargetAddress
from draft_service.drafters.interface import OpenBlock
from draft_service.drafters.model import ModelDrafter
from draftproof import AsyncClient, Completion
from draftproof.client import NO_RETRIES
from draftproof.engine.interface import Row
from draftproof.errors import UnavailableError
from draftproof.serving.options import ListenConfig
from draftproof.testing.table import ByteTokenizer, TableEngine
from orchestrator.attempt import Patience
from orchestrator.workers import State
from tests.integration.orchestrator.conftest import Build
from tests.integration.orchestrator.harness import RELAY, Cluster, Divider, check_same, requests
from tests.integration.services.harness import LETTERS, Node, model_drafter, table, until

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


class Stuck(ModelDrafter):
    """Goes on only while its gate is open."""

    def __init__(self, gate: threading.Event) -> None:
        honest = model_drafter(table(noise=0.3, slots=32))
        super().__init__(honest._engine, honest._encode)
        self._gate = gate

    def step(self, blocks: Sequence[OpenBlock]) -> None:
        self._gate.wait()
        super().step(blocks)


class StuckEngine(TableEngine):
    """Goes on only while its gate is open."""

    def __init__(self, gate: threading.Event, noise: float = 0.0, slots: int = 8) -> None:
        super().__init__(LETTERS, noise=noise, slots=slots, delay=0.003)
        self._gate = gate

    def forward(self, rows: Sequence[Row]) -> Tensor:
        self._gate.wait()
        return super().forward(rows)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """An open gate; open again at the end, or threads would wait for ever."""
    made = threading.Event()
    made.set()
    yield made
    made.set()


IMPATIENT = replace(RELAY, patience=Patience(opening=5.0, round=1.0))


async def test_a_silent_draft_is_given_up_for_another(cluster: Build, gate: threading.Event) -> None:
    drafters = iter([lambda: Stuck(gate), lambda: model_drafter(table(noise=0.3, slots=32))])
    # every round drafts: control may find that models this fast do better without
    built = await cluster(drafts=2, drafter=lambda: next(drafters)(), relay=IMPATIENT, adaptive=False)
    client = built.client()
    expected = await undisturbed(client, 8)
    running = asyncio.create_task(undisturbed(client, 8))
    await tokens_committed(built, 40)
    gate.clear()
    for completion, same in zip(await running, expected, strict=True):
        check_same(completion, same)
    stats = await built.stats()
    assert set(stats.fallbacks) == {"draft_slow"}
    gate.set()
    await built.idle()


async def test_a_silent_target_is_given_up_for_another(cluster: Build, gate: threading.Event) -> None:
    engines = iter([lambda: StuckEngine(gate), lambda: table(slots=8, delay=0.003)])
    built = await cluster(targets=2, drafts=2, engine=lambda: next(engines)(), relay=IMPATIENT)
    client = built.client()
    expected = await undisturbed(client, 8)
    running = asyncio.create_task(undisturbed(client, 8))
    await tokens_committed(built, 40)
    gate.clear()
    for completion, same in zip(await running, expected, strict=True):
        check_same(completion, same)
    stats = await built.stats()
    assert stats.fallbacks["target_slow"] > 0
    assert not stats.failed
    gate.set()
    await built.idle()


async def test_a_draft_whose_drafter_hangs_is_left_for_another(cluster: Build, gate: threading.Event) -> None:
    engines = iter([StuckEngine(gate, noise=0.3, slots=32), table(noise=0.3, slots=32)])
    built = await cluster(drafts=2, stall_timeout=1.0, drafter=lambda: model_drafter(next(engines)))
    client = built.client()
    expected = await undisturbed(client, 8)
    hung = built.worker(built.drafts[0])
    gate.clear()
    running = asyncio.create_task(undisturbed(client, 8))
    await until(lambda: hung.state is not State.READY)
    assert "NOT_SERVING" in hung.problem
    for index, (completion, same) in enumerate(zip(await running, expected, strict=True)):
        if index % 2:
            check_same(completion, same)
        else:  # seeded: a round without the proposals of the hung step ends elsewhere, under the same law
            assert len(completion.token_ids) == len(same.token_ids)
    await until(lambda: built.worker(built.drafts[1]).state is State.READY)
    # a γ of its own: control may find that models this fast do better without a draft
    alone = await client.generate("hello", max_tokens=20, ignore_eos=True, gamma=4)
    assert alone.stats.drafted, "the other one drafts"
    gate.set()
    await until(lambda: built.worker(built.drafts[0]).state is State.READY)
    await built.idle()


async def test_without_a_draft_it_goes_on_target_only_and_takes_one_again(cluster: Build) -> None:
    built = await cluster(relay=replace(RELAY, rejoin=16), drafter=lambda: model_drafter(table(slots=32)))
    client = built.client()
    alone = await client.generate("hello", temperature=0.0, max_tokens=200, ignore_eos=True)
    running = asyncio.create_task(client.generate("hello", temperature=0.0, max_tokens=200, ignore_eos=True))
    await tokens_committed(built, 20)
    await built.kill(built.drafts[0])
    await tokens_committed(built, 20)
    await built.restart(built.drafts, 0)
    completion = await running
    check_same(completion, alone)
    assert completion.stats.target_only > 10
    assert completion.stats.target_only < 150, "the draft came back"
    assert (await built.stats()).fallbacks["no_draft"] >= 1
    await built.idle()


async def test_a_seeded_request_says_so_when_it_had_to_go_on_without_its_draft(cluster: Build) -> None:
    built = await cluster(relay=replace(RELAY, same_draft=0.1))
    client = built.client()
    running = asyncio.create_task(client.generate("hello", seed=3, max_tokens=100, ignore_eos=True))
    await tokens_committed(built, 20)
    await built.kill(built.drafts[0])
    completion = await running
    assert len(completion.token_ids) == 100
    assert completion.lossless
    assert any("the text may differ from an uninterrupted run of this seed" in note for note in completion.notes)
    assert any("draft_lost" in note for note in completion.notes)


async def test_a_partition_between_draft_and_target_heals(cluster: Build, divider: Divider) -> None:
    built = await cluster(relay=replace(RELAY, rejoin=8))
    draft = built.drafts[0].app
    assert isinstance(draft, DraftApp)
    through = await divider.start(built.targets[0].port)
    draft._pool._make = lambda address: draft._make_link(through)
    client = built.client()
    expected = await undisturbed(client, 8)

    longer = await undisturbed(client, 8, 96)
    running = asyncio.create_task(undisturbed(client, 8, 96))
    await tokens_committed(built, 60)
    await divider.part()
    await tokens_committed(built, 60)
    await divider.heal()
    found = await running
    for completion, same, request in zip(found, longer, requests(8), strict=True):
        if "seed" not in request:
            check_same(completion, same)
        assert len(completion.token_ids) == 96
        assert completion.lossless
    stats = await built.stats()
    assert stats.fallbacks["target_lost"] > 0
    assert not stats.failed

    apart = built.app._door._router._apart
    await until(lambda: max(apart.values()) < time.monotonic())
    for completion, same in zip(await undisturbed(client, 8), expected, strict=True):
        check_same(completion, same)
        assert completion.drafter, "nothing is held against the pair any more"
    await built.idle()


async def test_a_draft_that_doesn_t_fit_is_never_asked(cluster: Build) -> None:
    built = await cluster(drafts=0)
    stranger = DraftApp(
        model_drafter(TableEngine(30)),
        ByteTokenizer(30, first_byte=ord("a")),
        30,
        DraftConfig(target=TargetAddress(address="")),
    )
    built.drafts.append(await built.kit._start(stranger))
    await built.orchestrate()
    await built.ready()
    completion = await built.client().generate("hello", max_tokens=8, ignore_eos=True)
    assert completion.drafter == ""
    assert not (await built.stats()).fallbacks["mismatch"]


async def test_a_target_of_other_weights_never_takes_over(cluster: Build) -> None:
    engines = iter([table(slots=8, delay=0.003), table(slots=8, delay=0.003, seed=5)])
    built = await cluster(targets=2, engine=lambda: next(engines), relay=replace(RELAY, no_worker=1.0))
    first, second = built.targets
    client = built.client(retries=NO_RETRIES)
    async with client.stream("hello", temperature=0.0, max_tokens=100, ignore_eos=True) as stream:
        begun = [token.id for token in (await anext(stream)).tokens]
        assert begun
        serving = first if built.worker(first).outstanding else second
        await built.kill(serving)
        with pytest.raises(UnavailableError, match="no target is ready"):
            begun += [token.id async for chunk in stream for token in chunk.tokens]


async def test_a_worker_that_drains_hands_its_requests_over(cluster: Build) -> None:
    built = await cluster(targets=2, drafts=2, listen=ListenConfig(grace=0.1))
    client = built.client()
    expected = await undisturbed(client, 16)
    for node in (built.drafts[0], built.targets[0]):
        running = asyncio.create_task(undisturbed(client, 16))
        await tokens_committed(built, 100)
        await node.app.drain()
        for completion, same in zip(await running, expected, strict=True):
            check_same(completion, same)
    stats = await built.stats()
    assert stats.fallbacks["draining"] > 0
    assert not stats.failed
