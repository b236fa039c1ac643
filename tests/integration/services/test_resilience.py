"""Connections, processes and slots that go away in the middle of a text: the same tokens, none lost, none twice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from draft_service.drafters.interface import OpenBlock
from draft_service.drafters.model import ModelDrafter
from draftproof import AsyncClient, Completion
from draftproof.client import NO_RETRIES
from draftproof.errors import DrainingError, RequestError
from draftproof.rpc.channel import aio_channel
from draftproof.serving.options import ListenConfig
from draftproof.testing.table import ByteTokenizer, TableEngine
from draftproof.v1 import error_pb2, generation_pb2, generation_pb2_grpc, sampling_pb2, target_pb2
from target_service.verifier import VerifierConfig
from tests.integration.services.harness import (
    Kit,
    Node,
    Options,
    Proxy,
    Stack,
    model_drafter,
    raw_draft,
    table,
    until,
)

SEEDED = {"seed": 11, "max_tokens": 60, "ignore_eos": True}


async def disturbed(stack: Stack, disturb: object, every: int = 4) -> Completion:
    """A generation during which something happens after every few chunks."""
    async with stack.client.stream("hello", **SEEDED) as stream:  # type: ignore[arg-type]
        count = 0
        async for _ in stream:
            count += 1
            if count % every == 0 and count <= 3 * every:
                result = disturb()  # type: ignore[operator]
                if result is not None:
                    await result
        return stream.completion


def check_same(completion: Completion, undisturbed: Completion) -> None:
    assert completion.token_ids == undisturbed.token_ids
    assert completion.text == undisturbed.text
    assert completion.usage == undisturbed.usage
    assert completion.lossless


async def test_a_cut_connection_changes_nothing(kit: Kit, proxy: Proxy) -> None:
    stack = await kit.stack(engine=table(delay=0.005), through=proxy)
    undisturbed = await stack.client.generate("hello", **SEEDED)  # type: ignore[arg-type]
    for every in (1, 2, 5):
        check_same(await disturbed(stack, proxy.cut, every), undisturbed)
    assert proxy.cuts == 9
    await stack.idle()


async def test_a_restarted_target_changes_nothing(kit: Kit) -> None:
    stack = await kit.stack(engine=table(delay=0.005))
    undisturbed = await stack.client.generate("hello", **SEEDED)  # type: ignore[arg-type]
    check_same(await disturbed(stack, stack.restart_target), undisturbed)
    await stack.idle()


async def test_a_restarted_draft_changes_nothing(kit: Kit) -> None:
    stack = await kit.stack(engine=table(delay=0.005))
    undisturbed = await stack.client.generate("hello", **SEEDED)  # type: ignore[arg-type]
    completion = await disturbed(stack, stack.restart_draft)
    assert completion.token_ids == undisturbed.token_ids
    assert completion.text == undisturbed.text
    await stack.idle()


async def test_a_dead_target_is_reported_within_the_reconnect_timeout(kit: Kit) -> None:
    from draft_service.link import LinkConfig

    stack = await kit.stack(engine=table(delay=0.01), link=LinkConfig(reconnect_timeout=0.3))
    client = kit.client(stack.draft.address, retries=NO_RETRIES)
    async with client.stream("hello", **SEEDED) as stream:  # type: ignore[arg-type]
        await anext(stream)
        await stack.target.kill()
        started = time.monotonic()
        with pytest.raises(RequestError, match="can't be reached") as caught:
            async for _ in stream:
                pass
        assert caught.value.code == "UNAVAILABLE"
        assert time.monotonic() - started < 2.0
    await until(lambda: not stack.draft.serving)
    with pytest.raises(RequestError, match="can't be reached"):
        await client.generate("hello")


class SlowDrafter(ModelDrafter):
    """Takes longer for a block than a slot waits for one."""

    def step(self, blocks: Sequence[OpenBlock]) -> None:
        time.sleep(0.03)
        super().step(blocks)


async def test_lost_prefixes_are_sent_again(kit: Kit) -> None:
    def drafter() -> ModelDrafter:
        honest = model_drafter(table(noise=0.3))
        return SlowDrafter(honest._engine, honest._encode)

    stack = await kit.stack(engine=table(slots=1), drafter=drafter, verifier=VerifierConfig(idle_evict=0.04), gamma=2)
    settings = [{"seed": seed, "max_tokens": 12, "ignore_eos": True} for seed in range(3)]
    undisturbed = [await stack.client.generate("hello", **s) for s in settings]  # type: ignore[arg-type]
    assert not stack.target.count("evicted_sessions_total")
    together = await asyncio.gather(*(stack.client.generate("hello", **s) for s in settings))  # type: ignore[arg-type]
    assert stack.target.count("evicted_sessions_total") > 3
    for completion, alone in zip(together, undisturbed, strict=True):
        check_same(completion, alone)
    await stack.idle()


async def test_an_evicted_session_goes_on_from_its_prefix(kit: Kit) -> None:
    target = await kit.target(Options(engine=table(slots=1), verifier=VerifierConfig(idle_evict=0.05)))
    async with raw_draft(target.address) as draft:
        key = (await draft.open(session=1)).request_key
        expected = [(await draft.round(n, 2 + n)).verdict.tokens[0].id for n in (1, 2, 3)]
        await draft.send(1, close=target_pb2.CloseSession())

        await draft.open(session=2, key=key)
        assert (await draft.round(1, 3, session=2)).verdict.tokens[0].id == expected[0]
        await draft.send(3, open=target_pb2.OpenSession(prompt_ids=[1]))
        lost = await draft.receive()
        assert (lost.session, lost.error.reason) == (2, error_pb2.ERROR_REASON_PREFIX_LOST)
        assert (await draft.receive()).session == 3
        assert target.count("evicted_sessions_total") == 1

        await draft.send(3, close=target_pb2.CloseSession())
        await draft.open(session=2, epoch=2, output=expected[:1], key=key)
        assert [(await draft.round(n, 2 + n, session=2, epoch=2)).verdict.tokens[0].id for n in (2, 3)] == expected[1:]


async def test_nobody_is_evicted_while_slots_are_free(kit: Kit) -> None:
    target = await kit.target(Options(engine=table(slots=2), verifier=VerifierConfig(idle_evict=0.05)))
    async with raw_draft(target.address) as draft:
        await draft.open(session=1)
        await draft.open(session=2)
        await draft.nothing(0.3)


GRACE = ListenConfig(grace=0.2)


async def generate_raw(
    client_address: str, resume: generation_pb2.Resume | None = None, max_tokens: int = 60
) -> tuple[list[int], generation_pb2.Resume | None]:
    """One call without the SDK: its tokens, and the prefix if it was handed back."""
    channel = aio_channel(client_address)
    found: list[int] = []
    request = generation_pb2.GenerateRequest(
        text="hello",
        sampling=sampling_pb2.SamplingParams(seed=11, max_tokens=max_tokens, ignore_eos=True),
        resume=resume,
    )
    try:
        async for event in generation_pb2_grpc.GenerationServiceStub(channel).Generate(request):
            found += [token.id for token in event.chunk.tokens]
            if event.WhichOneof("event") == "handed_back":
                return found, event.handed_back
    finally:
        await channel.close()
    return found, None


@pytest.mark.parametrize("who", ["draft", "target"])
async def test_draining_hands_back_a_prefix_that_goes_on_elsewhere(kit: Kit, who: str) -> None:
    options = {"engine": table(delay=0.02), "draft_listen": GRACE, "target_listen": GRACE}
    first, second = await kit.stack(**options), await kit.stack(**options)
    expected, nothing = await generate_raw(second.draft.address)
    assert nothing is None
    assert len(expected) == 60

    running = asyncio.create_task(generate_raw(first.draft.address))
    await until(lambda: first.target.count("rounds_total") > 2)
    node: Node = getattr(first, who)
    started = time.monotonic()
    await node.app.drain()
    assert 0.1 < time.monotonic() - started < 2.0
    begun, prefix = await running
    assert prefix is not None
    assert 0 < len(begun) < 60
    assert list(prefix.output_ids) == begun == expected[: len(begun)]

    rest, nothing = await generate_raw(second.draft.address, prefix)
    assert nothing is None
    assert begun + rest == expected
    # where a draft is missing the law is the same, though not the text
    alone, _ = await generate_raw(second.target.address, prefix)
    assert len(begun) + len(alone) == 60


@pytest.mark.parametrize("who", ["draft", "target"])
async def test_draining_lets_running_requests_finish_and_takes_no_new_ones(kit: Kit, who: str) -> None:
    stack = await kit.stack(
        engine=table(delay=0.01), draft_listen=ListenConfig(grace=10.0), target_listen=ListenConfig(grace=10.0)
    )
    impatient = kit.client(stack.draft.address, retries=NO_RETRIES)
    node: Node = getattr(stack, who)
    running = asyncio.create_task(impatient.generate("hello", **SEEDED))  # type: ignore[arg-type]
    await until(lambda: stack.target.count("rounds_total") > 2)
    started = time.monotonic()
    draining = asyncio.create_task(node.app.drain())
    await until(lambda: not node.serving)
    with pytest.raises(DrainingError) as caught:
        await impatient.generate("hello")
    assert caught.value.retry_delay
    assert len((await running).tokens) == 60
    await draining
    assert time.monotonic() - started < 5.0, "drains as soon as it is empty"


@pytest.mark.parametrize("who", ["draft", "target"])
async def test_the_sdk_goes_on_by_itself_when_a_server_is_replaced(kit: Kit, who: str) -> None:
    stack = await kit.stack(engine=table(delay=0.01), draft_listen=GRACE, target_listen=GRACE)
    undisturbed = await stack.client.generate("hello", **SEEDED)  # type: ignore[arg-type]
    running = asyncio.create_task(stack.client.generate("hello", **SEEDED))  # type: ignore[arg-type]
    rounds = stack.target.count("rounds_total")
    await until(lambda: stack.target.count("rounds_total") > rounds + 2)
    node: Node = getattr(stack, who)
    await node.app.drain()
    await (stack.restart_draft() if who == "draft" else stack.restart_target())
    completion = await running
    assert completion.token_ids == undisturbed.token_ids
    assert completion.text == undisturbed.text
    await stack.idle()


async def test_a_client_that_does_not_read_can_t_hold_up_a_drain(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftproof.serving.generation.HAND_BACK_SECONDS", 0.2)
    stack = await kit.stack(
        engine=TableEngine(257, max_context=100_000),
        tokenizer=ByteTokenizer(257),
        drafter=lambda: model_drafter(TableEngine(257, max_context=100_000)),
        target_listen=GRACE,
        draft_listen=GRACE,
        gamma=8,
    )
    channel = aio_channel(stack.draft.address)
    request = generation_pb2.GenerateRequest(
        text="hello", sampling=sampling_pb2.SamplingParams(ignore_eos=True), trace={"top_n": 0}
    )
    call = generation_pb2_grpc.GenerationServiceStub(channel).Generate(request)
    await call.read()
    rounds = -1.0
    while rounds != stack.target.count("rounds_total"):
        rounds = stack.target.count("rounds_total")
        await asyncio.sleep(0.3)
    assert rounds > 5, "it ran until its buffers were full"
    started = time.monotonic()
    await stack.draft.app.drain()
    assert 0.4 < time.monotonic() - started < 4.0
    await channel.close()


async def test_raw_sessions_are_refused_while_the_target_drains(kit: Kit) -> None:
    target = await kit.target(Options(target_listen=ListenConfig(grace=0.3)))
    async with raw_draft(target.address) as draft:
        await draft.open()
        draining = asyncio.create_task(target.app.drain())
        await until(lambda: not target.serving)
        await draft.send(2, open=target_pb2.OpenSession(prompt_ids=[1]))
        refused = await draft.receive()
        assert (refused.session, refused.error.reason) == (2, error_pb2.ERROR_REASON_DRAINING)
        assert (await draft.round(1, 3)).verdict.tokens, "the running one goes on"
        handed = await draft.receive()
        assert (handed.session, handed.error.reason) == (1, error_pb2.ERROR_REASON_DRAINING)
        await draining


async def test_a_client_object_survives_all_of_it(kit: Kit) -> None:
    stack = await kit.stack()
    async with AsyncClient(stack.draft.address) as client:
        before = await client.generate("hello", **SEEDED)  # type: ignore[arg-type]
        await stack.restart_target()
        await stack.restart_draft()
        assert (await client.generate("hello", **SEEDED)).token_ids == before.token_ids  # type: ignore[arg-type]


@pytest.mark.parametrize("drained", [True, False])
async def test_only_a_target_that_did_not_take_its_leave_is_a_warning(kit: Kit, drained: bool) -> None:
    with capture_logs() as logs:
        stack = await kit.stack()
        if drained:
            await stack.target.app.drain()
        else:
            await stack.target.kill()
        await until(lambda: not stack.draft.serving)
    found = [line for line in logs if line["event"] == "target lost"]
    assert [line["log_level"] for line in found] == ["info" if drained else "warning"], found
