"""Nodes and workers that come, go and die on a Ray cluster of several nodes, requests running on."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from draftproof.client import Completion
from draftproof.rpc.channel import aio_channel
from draftproof.v1 import orchestrator_pb2, orchestrator_pb2_grpc
from orchestrator.workers import Role, State
from tests.integration.orchestrator.harness import check_same, requests
from tests.integration.placement.conftest import Orchestrate, Running, node

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def first(machines: Any) -> Any:
    """A node with room for one draft and one target."""
    return machines.add_node(**node(draft=1, target=1))


async def serve(running: Running, count: int = 12, tokens: int = 60) -> list[Completion]:
    client = running.client()
    return await asyncio.gather(*(client.generate(**request) for request in requests(count, tokens)))


async def test_a_node_that_joins_adds_capacity_and_one_that_is_lost_loses_no_request(
    machines: Any, first: Any, orchestrate: Orchestrate
) -> None:
    running = await orchestrate()
    await running.until_ready(targets=1, drafts=1)
    before = running.pids()
    undisturbed = await serve(running)

    second = machines.add_node(**node(draft=1, target=1))
    try:
        await running.until_ready(targets=2, drafts=2)
        assert running.pids().items() >= before.items()  # with no restart
        assert len({worker.node for worker in running.app.fleet}) == 2
        disturbed = asyncio.create_task(serve(running))
        joined = [w for w in running.app.fleet if w.name not in before]
        assert {w.role for w in joined} == {Role.DRAFT, Role.TARGET}
        await running.until(lambda: all(w.outstanding for w in joined))
    finally:
        machines.remove_node(second, allow_graceful=False)
    for found, expected in zip(await disturbed, undisturbed, strict=True):
        check_same(found, expected)
    await running.until(lambda: len(list(running.app.fleet)) == 2)
    await running.until_ready(targets=1, drafts=1)
    assert running.pids() == before


async def test_a_killed_worker_is_replaced_at_once(first: Any, orchestrate: Orchestrate) -> None:
    running = await orchestrate()
    await running.until_ready(targets=1, drafts=1)
    undisturbed = await serve(running)
    for role in Role:
        worker = running.ready(role)[0]
        disturbed = asyncio.create_task(serve(running))
        await running.until(lambda: worker.outstanding > 0)  # noqa: B023
        os.kill(worker.pid, signal.SIGKILL)
        for found, expected in zip(await disturbed, undisturbed, strict=True):
            check_same(found, expected)
        await running.until_ready(targets=1, drafts=1)
        successor = running.ready(role)[0]
        assert successor.pid != worker.pid
        assert successor.restarts == 1


async def test_a_worker_is_drained_and_replaced_when_it_is_asked_for(first: Any, orchestrate: Orchestrate) -> None:
    running = await orchestrate()
    await running.until_ready(targets=1, drafts=1)
    undisturbed = await serve(running)
    target = running.ready(Role.TARGET)[0]
    disturbed = asyncio.create_task(serve(running))
    await running.until(lambda: target.outstanding > 0)
    async with aio_channel(running.address) as channel:
        steering: Any = orchestrator_pb2_grpc.OrchestratorServiceStub(channel)
        await steering.ReplaceWorker(orchestrator_pb2.ReplaceWorkerRequest(name=target.name))
    assert target.state is State.DRAINING
    for found, expected in zip(await disturbed, undisturbed, strict=True):
        check_same(found, expected)
    await running.until(lambda: running.ready(Role.TARGET) != [])
    assert running.ready(Role.TARGET)[0].pid != target.pid


async def test_the_next_orchestrator_finds_the_workers_and_replaces_those_with_other_settings(
    first: Any, orchestrate: Orchestrate
) -> None:
    running = await orchestrate()
    await running.until_ready(targets=1, drafts=1)
    before = running.pids()
    await running.stop()

    again = await orchestrate()
    await again.until_ready(targets=1, drafts=1)
    assert again.pids() == before
    await again.stop()

    other = await orchestrate(slots=3)
    await other.until_ready(targets=1, drafts=1)
    after = other.pids()
    assert after["draft-0"] == before["draft-0"]
    assert after["target-0"] != before["target-0"]
    assert other.ready(Role.TARGET)[0].slots == 3


async def test_a_worker_that_cannot_start_says_why_and_is_tried_again(first: Any, orchestrate: Orchestrate) -> None:
    running = await orchestrate(target="build_nothing")
    await running.until(
        lambda: any(
            w.role is Role.TARGET and w.restarts >= 1 and "no such model" in w.problem for w in running.app.fleet
        )
    )
    assert running.ready(Role.TARGET) == []
