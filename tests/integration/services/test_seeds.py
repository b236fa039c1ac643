"""The same seed gives the same tokens, whoever else is there and whatever was restarted."""

from __future__ import annotations

import asyncio
from typing import Any

from draftproof import Completion
from tests.integration.services.harness import Kit, Stack, table

MIXED: list[dict[str, Any]] = [
    {"prompt": "hello", "seed": 1},
    {"prompt": "hello", "seed": 2, "gamma": 0},
    {"prompt": "a", "seed": 1, "gamma": 7, "temperature": 0.7},
    {"prompt": "longer than the others", "seed": 3, "gamma": 1, "top_k": 5},
    {"prompt": "hello", "seed": 1, "sample_index": 1, "top_p": 0.8},
    {"prompt": "b", "seed": 4, "temperature": 1.4, "repetition_penalty": 1.2, "frequency_penalty": 0.3},
    {"prompt": "c", "seed": 5, "temperature": 0.0},
    {"prompt": "hello", "seed": 6, "min_p": 0.05, "logprobs": 2},
]


async def one(stack: Stack, request: dict[str, Any]) -> Completion:
    options = {"max_tokens": 40, "ignore_eos": True, "gamma": 4} | request
    return await stack.client.generate(options.pop("prompt"), **options)


async def test_seeded_texts_don_t_depend_on_company_or_restarts(kit: Kit) -> None:
    stack = await kit.stack()
    alone = [(await one(stack, request)).token_ids for request in MIXED]
    assert len(set(alone)) == len(MIXED)

    async def check(requests: list[int]) -> None:
        found = await asyncio.gather(*(one(stack, MIXED[i]) for i in requests))
        assert [completion.token_ids for completion in found] == [alone[i] for i in requests]

    await check(list(range(8)))
    await check([7, 3, 5, 1, 0, 2, 6, 4])
    await check([0] * 8)
    await stack.restart_target()
    await check(list(range(8)))
    await stack.restart_draft()
    await check(list(range(8)))
    assert [(await one(stack, request)).token_ids for request in MIXED] == alone


async def test_seeded_texts_don_t_depend_on_a_crowd_beyond_the_slots(kit: Kit) -> None:
    stack = await kit.stack(engine=table(slots=2))
    alone = [(await one(stack, request)).token_ids for request in MIXED]
    found = await asyncio.gather(*(one(stack, request) for request in MIXED))
    assert [completion.token_ids for completion in found] == alone


async def test_what_makes_a_text_another_one(kit: Kit) -> None:
    stack = await kit.stack()
    requests: list[dict[str, Any]] = [
        *({"seed": seed} for seed in range(10)),
        *({"seed": 0, "sample_index": index} for index in range(1, 10)),
        *({} for _ in range(10)),
    ]
    texts = {(await one(stack, {"prompt": "hello", **request})).token_ids for request in requests}
    assert len(texts) == len(requests)


async def test_greedy_needs_no_seed(kit: Kit) -> None:
    stack = await kit.stack()
    texts = {(await one(stack, {"prompt": "hello", "temperature": 0.0, "seed": s})).token_ids for s in (None, 1, 2)}
    greedy = await stack.direct.generate("hello", temperature=0.0, max_tokens=40, ignore_eos=True)
    assert texts == {greedy.token_ids}


async def test_the_target_alone_keeps_its_seeds(kit: Kit) -> None:
    stack = await kit.stack()
    options: dict[str, Any] = {"seed": 5, "max_tokens": 30, "ignore_eos": True}
    alone = await stack.direct.generate("hello", **options)
    together = await asyncio.gather(*(stack.direct.generate("hello", **options) for _ in range(6)))
    assert {completion.token_ids for completion in together} == {alone.token_ids}
    assert alone.token_ids == (await stack.client.generate("hello", gamma=0, **options)).token_ids
