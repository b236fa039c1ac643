"""Rounds that the target runs unasked while nobody drafts: the same text, fewer frames, gone with their session."""

from __future__ import annotations

import asyncio

import pytest

from draft_service.copying import Copier
from draft_service.drafters.ngram import NgramDrafter
from draftproof.sampling.draft_q import quantise
from draftproof.v1 import error_pb2, target_pb2, verdict_pb2
from target_service.verifier import VerifierConfig
from tests.integration.services.harness import (
    Kit,
    Options,
    Proxy,
    ScriptEngine,
    proposals,
    random_q,
    raw_draft,
    table,
    until,
)

MOST = VerifierConfig().max_unaided
UNDRAFTED = {"seed": 11, "gamma": 0, "max_tokens": 100, "ignore_eos": True}


async def test_one_block_brings_the_verdicts_of_all_that_follow(kit: Kit) -> None:
    target = await kit.target(Options())
    async with raw_draft(target.address) as draft:
        assert draft.welcome.max_unaided == MOST
        key = (await draft.open(session=1)).request_key
        asked = [(await draft.round(n, 2 + n)).verdict.tokens[0] for n in range(1, 7)]
        await draft.open(session=2, key=key)
        await draft.send(2, round=1, block=target_pb2.Block(start=3, unaided=5))
        frames = [await draft.receive() for _ in range(6)]
        assert [frame.round for frame in frames] == [1, 2, 3, 4, 5, 6]
        assert [frame.verdict.unaided for frame in frames] == [5, 4, 3, 2, 1, 0]
        assert [frame.verdict.tokens[0] for frame in frames] == asked
        # it goes on as if all had been asked for, repetitions included
        assert await draft.round(6, 9, session=2) == frames[-1]
        assert (await draft.round(7, 9, session=2)).verdict.tokens[0] == (await draft.round(7, 9)).verdict.tokens[0]
        await draft.nothing()


async def test_they_may_follow_proposals(kit: Kit) -> None:
    target = await kit.target(Options())
    async with raw_draft(target.address) as draft:
        key = (await draft.open()).request_key
        block = target_pb2.Block(start=3, proposals=proposals(key, 3, quantise(random_q(1), 128, 12)), unaided=2)
        await draft.send(round=1, block=block)
        first, *rest = [(await draft.receive()).verdict for _ in range(3)]
        assert first.examined == 1
        assert [verdict.examined for verdict in rest] == [0, 0]


async def test_they_end_with_the_output(kit: Kit) -> None:
    target = await kit.target(Options())
    async with raw_draft(target.address) as draft:
        await draft.open(max_tokens=3)
        await draft.send(round=1, block=target_pb2.Block(start=3, unaided=MOST))
        verdicts = [(await draft.receive()).verdict for _ in range(3)]
        assert [verdict.finish_reason for verdict in verdicts] == [0, 0, verdict_pb2.FINISH_REASON_LENGTH]
        assert verdicts[-1].unaided == 0
        await draft.nothing()
        assert target.count("rounds_total") == 3


async def test_more_than_the_target_offers_is_refused(kit: Kit) -> None:
    target = await kit.target(Options())
    async with raw_draft(target.address) as draft:
        await draft.open()
        await draft.send(round=1, block=target_pb2.Block(start=3, unaided=MOST + 1))
        error = (await draft.receive()).error
        assert error.reason == error_pb2.ERROR_REASON_INVALID_ARGUMENT
        assert error.metadata["field"] == "block.unaided"
        assert str(MOST) in error.message


async def test_another_block_meanwhile_breaks_the_protocol(kit: Kit) -> None:
    target = await kit.target(Options(engine=table(delay=0.05)))
    async with raw_draft(target.address) as draft:
        await draft.open()
        await draft.send(round=1, block=target_pb2.Block(start=3, unaided=3))
        assert (await draft.receive()).round == 1
        await draft.send(round=3, block=target_pb2.Block(start=5))
        while (frame := await draft.receive()).WhichOneof("frame") == "verdict":
            pass
        assert frame.error.reason == error_pb2.ERROR_REASON_PROTOCOL
        await draft.nothing(0.2)


async def test_a_halt_ends_them_and_the_draft_goes_on(kit: Kit) -> None:
    target = await kit.target(Options(engine=table(delay=0.05)))
    async with raw_draft(target.address) as draft:
        key = (await draft.open(session=1)).request_key
        asked = [(await draft.round(n, 2 + n)).verdict.tokens[0] for n in range(1, 10)]
        await draft.open(session=2, key=key)
        await draft.send(2, halt=target_pb2.Halt())  # nothing comes unasked yet: nothing happens
        await draft.send(2, round=1, block=target_pb2.Block(start=3, unaided=MOST))
        verdicts = [(await draft.receive()).verdict]
        await draft.send(2, halt=target_pb2.Halt())
        while verdicts[-1].unaided:
            verdicts.append((await draft.receive()).verdict)
        assert 2 <= len(verdicts) <= 3
        await asyncio.sleep(0.2)
        number = len(verdicts) + 1
        frame = await draft.round(number, 2 + number, session=2)
        assert frame.round == number
        assert [verdict.tokens[0] for verdict in [*verdicts, frame.verdict]] == asked[:number]


async def test_a_halt_of_an_earlier_life_is_stale(kit: Kit) -> None:
    target = await kit.target(Options(engine=table(delay=0.02)))
    async with raw_draft(target.address) as draft:
        await draft.open(epoch=2)
        await draft.send(epoch=2, round=1, block=target_pb2.Block(start=3, unaided=4))
        await draft.send(epoch=1, halt=target_pb2.Halt())
        assert [(await draft.receive()).verdict.unaided for _ in range(5)] == [4, 3, 2, 1, 0]


async def test_a_closed_session_runs_no_further(kit: Kit) -> None:
    engine = table(delay=0.02)
    target = await kit.target(Options(engine=engine))
    async with raw_draft(target.address) as draft:
        await draft.open()
        await draft.send(round=1, block=target_pb2.Block(start=3, unaided=MOST))
        await draft.receive()
        await draft.send(close=target_pb2.CloseSession())
        await until(lambda: target.count("active_sessions") == 0)
        passes = engine.passes
        await asyncio.sleep(0.2)
        assert engine.passes <= passes + 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_a_request_without_proposals_hardly_asks(kit: Kit, temperature: float) -> None:
    stack = await kit.stack()
    direct = await stack.direct.generate("hello", temperature=temperature, **UNDRAFTED)  # type: ignore[arg-type]
    blocks = _count_blocks(stack.target.app)
    completion = await stack.client.generate("hello", temperature=temperature, **UNDRAFTED)  # type: ignore[arg-type]
    assert completion.token_ids == direct.token_ids
    assert completion.usage == direct.usage
    assert completion.stats.rounds == completion.stats.target_only == 100
    assert len(blocks) == 2
    await stack.idle()


async def test_a_text_that_begins_to_repeat_itself_ends_them(kit: Kit) -> None:
    engine = ScriptEngine([*range(5, 25)] * 5, prompt=5)
    stack = await kit.stack(engine=engine, drafter=NgramDrafter, copier=lambda: Copier(2, 4, alone=True))
    greedy = {"temperature": 0.0, "max_tokens": 100, "ignore_eos": True}
    direct = await stack.direct.generate("hello", **greedy)  # type: ignore[arg-type]
    completion = await stack.client.generate("hello", **greedy)  # type: ignore[arg-type]
    assert completion.token_ids == direct.token_ids
    # the first look finds nothing to copy, and without another one 64 tokens would come one by one
    assert completion.stats.target_only >= 10
    assert completion.stats.rounds < 64
    await stack.idle()


async def test_a_cut_connection_changes_nothing_meanwhile(kit: Kit, proxy: Proxy) -> None:
    stack = await kit.stack(engine=table(delay=0.005), through=proxy)
    undisturbed = await stack.client.generate("hello", **UNDRAFTED)  # type: ignore[arg-type]
    async with stack.client.stream("hello", **UNDRAFTED) as stream:  # type: ignore[arg-type]
        count = 0
        async for _ in stream:
            count += 1
            if count in (3, 40, 80):
                proxy.cut()
        assert stream.completion.token_ids == undisturbed.token_ids
        assert stream.completion.usage == undisturbed.usage
    assert proxy.cuts == 3
    await stack.idle()


async def test_a_caller_that_leaves_ends_them(kit: Kit) -> None:
    engine = table(delay=0.02)
    stack = await kit.stack(engine=engine)
    async with stack.client.stream("hello", **UNDRAFTED) as stream:  # type: ignore[arg-type]
        await anext(aiter(stream))
    await stack.idle()
    passes = engine.passes
    await asyncio.sleep(0.2)
    assert engine.passes <= passes + 1
    assert passes < 30


def _count_blocks(app: object) -> list[int]:
    """Numbers of the rounds that the target is asked for from now on."""
    verifier = app._verifier  # type: ignore[attr-defined]
    real, asked = verifier.block, []

    def block(owner: object, session_id: int, epoch: int, number: int, block: target_pb2.Block) -> None:
        asked.append(number)
        real(owner, session_id, epoch, number, block)

    verifier.block = block
    return asked
