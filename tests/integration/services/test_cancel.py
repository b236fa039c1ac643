"""Callers that leave, in every phase of a request: what it held is free within a round, on both servers."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import psutil
import pytest

from draft_service.drafters.interface import OpenBlock
from draft_service.drafters.model import ModelDrafter
from draftproof.engine.interface import Row
from draftproof.rpc.channel import aio_channel
from draftproof.testing.table import TableEngine
from draftproof.v1 import generation_pb2, generation_pb2_grpc, sampling_pb2
from target_service.app import TargetApp
from tests.integration.services.harness import (
    LETTERS,
    PATIENCE,
    Kit,
    Stack,
    held,
    model_drafter,
    raw_draft,
    table,
    until,
)


class Gate:
    """Holds up a thread until it is opened."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self.waiting = 0

    def close(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def __call__(self) -> None:
        self.waiting += 1
        self._open.wait(PATIENCE)
        self.waiting -= 1


class GatedEngine(TableEngine):
    gate: Gate

    def forward(self, rows: Sequence[Row]) -> Any:
        self.gate()
        return super().forward(rows)


class GatedDrafter(ModelDrafter):
    gate: Gate

    def step(self, blocks: Sequence[OpenBlock]) -> None:
        if blocks:
            self.gate()
        super().step(blocks)


def count_closings(stack: Stack) -> list[int]:
    """Session ids that the target was told to close, as they come."""
    assert isinstance(stack.target.app, TargetApp)
    verifier = stack.target.app._verifier
    closed: list[int] = []
    close = verifier.close

    def counting(owner: object, session_id: int, epoch: int) -> None:
        closed.append(session_id)
        close(owner, session_id, epoch)

    verifier.close = counting  # type: ignore[method-assign]
    return closed


async def gated(kit: Kit, slots: int = 8) -> tuple[Stack, Gate, Gate]:
    engine, target_gate, draft_gate = GatedEngine(LETTERS, slots=slots), Gate(), Gate()
    engine.gate = target_gate

    def drafter() -> ModelDrafter:
        honest = model_drafter(table(noise=0.3))
        built = GatedDrafter(honest._engine, honest._encode)
        built.gate = draft_gate
        return built

    return await kit.stack(engine=engine, drafter=drafter), target_gate, draft_gate


@pytest.mark.parametrize("how", ["cancel", "disconnect", "deadline"])
@pytest.mark.parametrize("phase", ["queued", "drafting", "verifying", "streaming"])
async def test_a_caller_that_leaves_frees_everything(kit: Kit, phase: str, how: str) -> None:
    stack, target_gate, draft_gate = await gated(kit, slots=1)
    closed = count_closings(stack)
    holder = None
    if phase == "queued":
        holder = raw_draft(stack.target.address)
        await (await holder.__aenter__()).open(prompt=[1])
    elif phase == "drafting":
        draft_gate.close()
    elif phase == "verifying":
        target_gate.close()
    channel = aio_channel(stack.draft.address)
    request = generation_pb2.GenerateRequest(text="hello", sampling=sampling_pb2.SamplingParams(ignore_eos=True))
    call = generation_pb2_grpc.GenerationServiceStub(channel).Generate(
        request, timeout=1.5 if how == "deadline" else None
    )
    reading = asyncio.ensure_future(call.read())
    if phase == "queued":
        await until(lambda: held(stack).get("queue") == 1)
    elif phase == "drafting":
        await until(lambda: draft_gate.waiting == 1)
    elif phase == "verifying":
        await until(lambda: target_gate.waiting == 1)
    else:
        await until(lambda: stack.target.count("rounds_total") > 3)
    if how == "cancel":
        call.cancel()
    elif how == "disconnect":
        await channel.close()
    with suppress(BaseException):
        await reading

    # at once, even while a model is stuck: all but the slot whose pass is running
    def freed() -> bool:
        left = set(held(stack))
        if holder is not None:
            return (
                left == {"target sessions", "slots", "free slots missing"} and len(held(stack)["target sessions"]) == 1
            )
        return left <= ({"slots", "free slots missing"} if phase == "verifying" else set()) | {"draft slots"}

    await until(freed, 2.0)
    if holder is not None:
        await holder.__aexit__(None, None, None)
    target_gate.open()
    draft_gate.open()
    await stack.idle()
    assert len(closed) == 1, "one word reaches the target, once"
    await channel.close()
    assert len((await stack.client.generate("hello", max_tokens=5, ignore_eos=True)).tokens) == 5
    await stack.idle()


async def test_a_dead_draft_frees_its_sessions_on_the_target(kit: Kit) -> None:
    stack, target_gate, _ = await gated(kit)
    target_gate.close()
    running = asyncio.create_task(stack.client.generate("hello", timeout=2.0))
    await until(lambda: target_gate.waiting == 1)
    await stack.draft.kill()
    assert isinstance(stack.target.app, TargetApp)
    verifier = stack.target.app._verifier
    await until(lambda: not verifier._sessions, 2.0)
    target_gate.open()
    await until(lambda: len(verifier._admission._free) == 8)
    assert len((await stack.direct.generate("hello", max_tokens=5, ignore_eos=True)).tokens) == 5
    running.cancel()
    with suppress(BaseException):
        await running


async def test_a_direct_caller_that_leaves_frees_the_target(kit: Kit) -> None:
    stack, target_gate, _ = await gated(kit)
    target_gate.close()
    async with stack.direct.stream("hello") as stream:
        reading = asyncio.ensure_future(anext(stream))
        await until(lambda: target_gate.waiting == 1)
    with suppress(BaseException):
        await reading
    await until(lambda: "target sessions" not in held(stack), 2.0)
    target_gate.open()
    await stack.idle()


async def test_cancelling_leaves_memory_flat(kit: Kit) -> None:
    growth = await cancel_many(kit, warm_up=500, cancels=1500)
    assert growth < 3 * 2**20, f"{growth / 2**20:.1f} MiB over 1,500 cancels"


async def cancel_many(kit: Kit, warm_up: int, cancels: int) -> int:
    """Bytes of memory that `cancels` cancelled requests left behind, after a warm-up."""
    stack = await kit.stack()
    channel = aio_channel(stack.draft.address)
    stub = generation_pb2_grpc.GenerationServiceStub(channel)
    request = generation_pb2.GenerateRequest(text="hello", sampling=sampling_pb2.SamplingParams(ignore_eos=True))

    async def cancel(number: int) -> None:
        call = stub.Generate(request)
        for _ in range(number % 3):
            await call.read()
        call.cancel()
        with suppress(asyncio.CancelledError):
            await call.read()

    async def batch(size: int) -> int:
        for start in range(0, size, 20):
            await asyncio.gather(*(cancel(start + i) for i in range(20)))
        await stack.idle()
        gc.collect()
        return int(psutil.Process().memory_info().rss)

    before = await batch(warm_up)
    after = await batch(cancels)
    await channel.close()
    return after - before
