"""Drafting ahead through the running services: the same text whatever the timing, and nothing left behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from torch import Tensor

from bench.proxy import Proxy as Relay
from bench.proxy import Wire
from draftproof.engine.interface import Row
from draftproof.testing.table import TableEngine
from tests.integration.services.harness import LETTERS, Kit, Proxy, Stack, held, model_drafter, table, until

SEEDS = range(4)
TOKENS = 24


class Moody(TableEngine):
    """Takes its time, each pass another one."""

    def __init__(self, longest: float, **options: Any) -> None:
        super().__init__(LETTERS, **options)
        self._longest = longest
        self._random = random.Random(1)

    def forward(self, rows: Sequence[Row]) -> Tensor:
        self._delay = self._random.uniform(0.0, self._longest)
        return super().forward(rows)


async def texts(stack: Stack, temperature: float) -> list[tuple[int, ...]]:
    done = await asyncio.gather(
        *(
            stack.client.generate("hello", temperature=temperature, seed=seed, max_tokens=TOKENS, ignore_eos=True)
            for seed in SEEDS
        )
    )
    return [completion.token_ids for completion in done]


@pytest.fixture
async def far() -> AsyncIterator[Relay]:
    """To be pointed at a target."""
    relay = Relay("127.0.0.1", 0, Wire(0.01, jitter=0.01), Wire(0.01, jitter=0.01, seed=1))
    yield relay
    await relay.close()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_a_seeded_text_is_the_same_with_and_without_near_and_far(
    kit: Kit, far: Relay, temperature: float
) -> None:
    found, used, dropped = [], 0.0, 0.0
    for ahead, distant, longest in ((False, False, 0.0), (True, False, 0.002), (True, True, 0.0), (True, True, 0.003)):
        stack = await kit.stack(
            ready=not distant,
            engine=Moody(longest),
            drafter=lambda longest=longest: model_drafter(Moody(longest, noise=0.1)),
            through=Distance(far) if distant else None,
            ahead=ahead,
        )
        await until(lambda stack=stack: stack.draft.serving)
        found.append(await texts(stack, temperature))
        used += stack.draft.count("ahead_rounds_total", outcome="used")
        dropped += stack.draft.count("ahead_rounds_total", outcome="dropped")
        assert ahead or used == dropped == 0
        await stack.idle()
    assert used
    assert dropped
    assert found == [found[0]] * len(found)
    assert len(set(found[0])) == (1 if not temperature else len(SEEDS))


class Distance(Proxy):
    """Starts the relay once the target's port is known."""

    def __init__(self, relay: Relay) -> None:
        super().__init__()
        self._relay = relay

    async def start(self, port: int) -> str:
        self._relay._to = "127.0.0.1", port
        if self._relay._server is not None:
            self._relay._server.close()
        return f"127.0.0.1:{await self._relay.start()}"


async def test_cancelling_while_a_block_is_drafted_ahead_leaves_nothing(kit: Kit) -> None:
    stack = await kit.stack(
        engine=table(delay=0.05), drafter=lambda: model_drafter(table(noise=0.1, delay=0.002)), ahead=True
    )

    async def cancelled() -> None:
        async with stack.client.stream("hello", max_tokens=200, ignore_eos=True) as stream:
            async for _ in stream:
                await until(lambda: "drafted ahead" in held(stack))
                return

    await asyncio.gather(*(cancelled() for _ in range(6)))
    await stack.idle()


async def test_a_lost_stream_while_a_block_is_drafted_ahead_changes_nothing(kit: Kit, proxy: Proxy) -> None:
    options = {"temperature": 1.0, "seed": 5, "max_tokens": TOKENS, "ignore_eos": True}
    stack = await kit.stack(
        engine=table(delay=0.02),
        drafter=lambda: model_drafter(table(noise=0.1, delay=0.002)),
        through=proxy,
        ahead=True,
    )
    undisturbed = await stack.client.generate("hello", **options)
    ids: list[int] = []
    async with stack.client.stream("hello", **options) as stream:
        async for chunk in stream:
            ids += [token.id for token in chunk.tokens]
            if proxy.cuts < 3:
                await until(lambda: "drafted ahead" in held(stack))
                proxy.cut()
    assert tuple(ids) == undisturbed.token_ids
    assert proxy.cuts == 3
    await stack.idle()
