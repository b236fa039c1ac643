"""Bounded messages, bounded queues, peers that don't read, and more callers than slots."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
import pytest

from draftproof.client import NO_RETRIES
from draftproof.errors import MessageTooLargeError, OverloadedError
from draftproof.rpc.options import RpcLimits
from draftproof.rpc.status import from_rpc_error
from draftproof.serving.options import ListenConfig
from draftproof.testing.table import ByteTokenizer, TableEngine
from draftproof.v1 import error_pb2, target_pb2
from target_service.app import TargetApp
from target_service.verifier import VerifierConfig
from tests.integration.services.harness import Kit, Options, letters, model_drafter, raw_draft, table, until

SMALL = ListenConfig(limits=RpcLimits(max_message_bytes=4096))
BYTES: dict[str, Any] = {
    "engine": TableEngine(257),
    "tokenizer": ByteTokenizer(257),
    "drafter": lambda: model_drafter(TableEngine(257, noise=0.1), "dense"),
}


@pytest.mark.parametrize("limited", ["target_listen", "draft_listen"])
async def test_an_oversize_block_fails_its_request_alone(kit: Kit, limited: str) -> None:
    stack = await kit.stack(**BYTES, **{limited: SMALL})
    client = kit.client(stack.draft.address, retries=NO_RETRIES)
    other = asyncio.create_task(client.generate("hello", gamma=1, max_tokens=60, ignore_eos=True))
    for _ in range(3):
        with pytest.raises(MessageTooLargeError) as caught:
            await client.generate("hello", gamma=8, max_tokens=60, ignore_eos=True)
        assert caught.value.metadata["setting"] == "max_message_bytes"
        assert caught.value.code == "RESOURCE_EXHAUSTED"
    assert len((await other).tokens) == 60
    assert stack.draft.serving
    await stack.idle()


@pytest.mark.parametrize("limited", ["target_listen", "draft_listen"])
async def test_an_oversize_verdict_fails_its_request_alone(kit: Kit, limited: str) -> None:
    lattice = lambda: model_drafter(TableEngine(257, noise=0.1))  # noqa: E731
    stack = await kit.stack(**{**BYTES, "drafter": lattice}, **{limited: SMALL})
    client = kit.client(stack.draft.address, retries=NO_RETRIES)
    other = asyncio.create_task(client.generate("hello", gamma=4, max_tokens=60, ignore_eos=True))
    with pytest.raises(MessageTooLargeError) as caught:
        await client.generate("hello", gamma=8, max_tokens=60, ignore_eos=True, trace="full", seed=1)
    assert caught.value.metadata["setting"] == "max_message_bytes"
    assert len((await other).tokens) == 60
    await stack.idle()


async def test_an_oversize_prompt_is_named_at_once(kit: Kit) -> None:
    stack = await kit.stack(draft_listen=SMALL)
    with pytest.raises(MessageTooLargeError) as caught:
        await stack.client.generate("a" * 5000)
    assert caught.value.metadata["setting"] == "max_message_bytes"


async def test_a_draft_that_ignores_the_limit_loses_its_stream_and_nothing_else(kit: Kit) -> None:
    target = await kit.target(Options(target_listen=SMALL))
    async with raw_draft(target.address) as bystander, raw_draft(target.address) as draft:
        await bystander.open()
        await draft.open()
        with pytest.raises(grpc.RpcError) as caught:
            await draft.round(1, 3, [target_pb2.Proposal(q={"dense": {"masses": bytes(5000)}})])
        error = from_rpc_error(caught.value)
        assert isinstance(error, MessageTooLargeError)
        assert error.metadata["setting"] == "max_message_bytes"
        assert (await bystander.round(1, 3)).verdict.tokens
    async with raw_draft(target.address) as draft:
        assert draft.welcome.max_message_bytes == 4096
        await draft.open()
        assert (await draft.round(1, 3)).verdict.tokens


async def test_a_full_queue_refuses_at_once_and_says_when_to_come_back(kit: Kit) -> None:
    target = await kit.target(Options(engine=table(slots=1), verifier=VerifierConfig(queue_limit=2)))
    async with raw_draft(target.address) as draft:
        await draft.open(session=1)
        for session in (2, 3):
            await draft.send(session, open=target_pb2.OpenSession(prompt_ids=[1]))
        started = time.monotonic()
        await draft.send(4, open=target_pb2.OpenSession(prompt_ids=[1]))
        refused = await draft.receive()
        assert time.monotonic() - started < 1.0
        assert refused.session == 4
        assert refused.error.reason == error_pb2.ERROR_REASON_OVERLOADED
        assert 0 < refused.error.retry_delay.ToTimedelta().total_seconds() <= 5
        assert refused.error.metadata["setting"] == "queue_limit"
        client = kit.client(target.address, retries=NO_RETRIES)
        with pytest.raises(OverloadedError) as caught:
            await client.generate("hello")
        assert caught.value.retry_delay
        assert target.count("waiting_sessions") == 2
        # first come, first served
        await draft.send(1, close=target_pb2.CloseSession())
        assert (await draft.receive()).session == 2
        await draft.send(2, close=target_pb2.CloseSession())
        assert (await draft.receive()).session == 3


async def test_a_full_draft_refuses_at_once(kit: Kit) -> None:
    stack = await kit.stack(engine=table(delay=0.05), max_sessions=1)
    client = kit.client(stack.draft.address, retries=NO_RETRIES)
    running = asyncio.create_task(client.generate("hello", max_tokens=20, ignore_eos=True))
    await until(lambda: stack.target.count("active_sessions") == 1)
    with pytest.raises(OverloadedError) as caught:
        await client.generate("hello")
    assert caught.value.metadata["setting"] == "max_sessions"
    assert len((await running).tokens) == 20


async def test_a_draft_that_doesn_t_read_is_cut_off(kit: Kit) -> None:
    target = await kit.target(Options(engine=TableEngine(257), tokenizer=ByteTokenizer(257)))
    assert isinstance(target.app, TargetApp)
    target.app._stream._outbox_limit = 100
    async with raw_draft(target.address, hello=False) as draft:
        from tests.integration.services.harness import fingerprint

        await draft.send(0, 0, hello=target_pb2.Hello(fingerprint=fingerprint(ByteTokenizer(257))))
        await draft.receive()
        await draft.send(open=target_pb2.OpenSession(prompt_ids=[1], trace={"top_n": 0}))
        await draft.receive()
        assert (await draft.round(1, 1)).verdict.tokens
        verifier = target.app._verifier
        for _ in range(20_000):
            # each of these is answered by the whole verdict again
            await draft.send(round=1, block=target_pb2.Block(start=1))
            if not verifier._sessions:
                break
        assert not verifier._sessions


async def test_many_more_sessions_than_slots_all_finish(kit: Kit) -> None:
    stack = await kit.stack(engine=table(slots=8), verifier=VerifierConfig(queue_limit=64))
    client = kit.client(stack.draft.address)
    order: list[int] = []

    async def one(number: int) -> int:
        completion = await client.generate("hello", seed=number, max_tokens=8, ignore_eos=True)
        order.append(number)
        return len(completion.tokens)

    started = time.monotonic()
    counts = await asyncio.wait_for(asyncio.gather(*(one(i) for i in range(200))), 60.0)
    assert counts == [8] * 200
    assert sorted(order) == list(range(200))
    assert stack.target.count("failed_sessions_total", reason="OVERLOADED") > 0, "the queue was full"
    assert time.monotonic() - started < 60
    await stack.idle()


async def test_prompts_in_every_form(kit: Kit) -> None:
    stack = await kit.stack()
    options: dict[str, Any] = {"seed": 1, "max_tokens": 8, "ignore_eos": True}
    text = await stack.client.generate("hello", **options)
    ids = await stack.client.generate(token_ids=letters().encode("hello"), **options)
    assert ids.token_ids == text.token_ids
    chat = await stack.client.generate(messages=[{"role": "user", "content": "hello"}], **options)
    assert chat.prompt_ids == tuple(letters().render_chat([{"role": "user", "content": "hello"}]))
