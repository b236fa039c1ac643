"""Packets between draft and target are dropped, silently: requests go on target-only, and all is well once it ends."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.fake_cluster import Process, Speed, worker
from draftproof import AsyncClient, Completion
from draftproof.client import NO_RETRIES
from draftproof.rpc.channel import aio_channel
from draftproof.v1 import orchestrator_pb2, orchestrator_pb2_grpc
from tests.e2e.namespaces import Namespaces, NoNamespacesError

STREAMS = 6
TOKENS = 120
HEALED_SECONDS = 30.0
# a silent worker is noticed within a second, a dead connection within two
IMPATIENT = ("--round-timeout", "1", "--probe-interval", "0.1")
KEEPALIVE = ("--insecure", "--keepalive", "1")


@dataclass
class Parted:
    """A target, a draft, an orchestrator that reaches both, and the wall between the two."""

    net: Namespaces
    workers: list[Process]
    orchestrator: Process


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Parted]:
    """Started, and ended with the test."""
    try:
        net = Namespaces().__enter__()
    except NoNamespacesError as error:
        pytest.skip(f"no network namespaces here: {error}")
    started: list[Process] = []

    def start(name: str, command: list[str]) -> Process:
        process = Process(name, command, tmp_path / f"{name}.log")
        started.append(process)
        process.start()
        return process

    try:
        for role, speed in (("target", Speed(0.02, slots=16)), ("draft", Speed(0.001, noise=0.2, slots=16))):
            start(role, net.inside(role, worker(role, speed, "--host", net.address(role), *KEEPALIVE)))
        for process in started:
            process.wait()
        target, draft = started
        command = [sys.executable, "-m", "orchestrator", "--ray-address", "none", "--log-format", "json", *IMPATIENT]
        command += ["--worker-insecure", "--attach-target", target.address, "--attach-draft", draft.address]
        orchestrator = start("orchestrator", command)
        orchestrator.wait()
        yield Parted(net, [target, draft], orchestrator)
    finally:
        for process in started:
            process.kill()
        net.__exit__(None, None, None)


@pytest.mark.timeout(600)
async def test_a_partition_heals_without_a_restart(cluster: Parted) -> None:
    async with AsyncClient(cluster.orchestrator.address, retries=NO_RETRIES, timeout=60.0) as client:
        under_way = asyncio.Event()

        async def one(prompt: str) -> Completion:
            options = {"temperature": 0.0, "max_tokens": TOKENS, "ignore_eos": True, "gamma": 3}
            async with client.stream(prompt, **options) as stream:
                async for _ in stream:
                    under_way.set()
            return stream.completion

        async def speculates() -> bool:
            return (await client.generate("hello", max_tokens=16, ignore_eos=True, gamma=3)).stats.drafted > 0

        assert await eventually(speculates)
        prompts = [f"hello{chr(97 + i)}" for i in range(STREAMS)]
        undisturbed = await asyncio.gather(*map(one, prompts))
        assert all(map(drafted_throughout, undisturbed))

        under_way.clear()
        running = asyncio.gather(*map(one, prompts))
        await under_way.wait()
        cluster.net.part()
        for found, same in zip(await running, undisturbed, strict=True):
            assert found.token_ids == same.token_ids
            assert found.usage == same.usage
            assert not drafted_throughout(found), "it went on without its draft"
            assert found.lossless
        # new ones don't meet the draft at all
        for found, same in zip(await asyncio.gather(*map(one, prompts)), undisturbed, strict=True):
            assert found.token_ids == same.token_ids
            assert found.stats.drafted == 0
        assert not await speculates()

        cluster.net.heal()
        assert await eventually(speculates)
        for found, same in zip(await asyncio.gather(*map(one, prompts)), undisturbed, strict=True):
            assert found.token_ids == same.token_ids
            assert drafted_throughout(found)
    stats = await count(cluster)
    assert stats.fallbacks["draft_slow"] + stats.fallbacks["target_lost"] >= STREAMS
    assert not stats.failed
    for process in (*cluster.workers, cluster.orchestrator):
        assert process.running is not None
        assert process.running.poll() is None, "nothing was restarted"


def drafted_throughout(completion: Completion) -> bool:
    """Whether every round had proposals; the very last token has no room for one."""
    return completion.stats.target_only <= 1


async def eventually(condition: Callable[[], Awaitable[bool]], seconds: float = HEALED_SECONDS) -> bool:
    """Whether a condition comes true in time."""
    end = time.monotonic() + seconds
    while not await condition():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(0.1)
    return True


async def count(cluster: Parted) -> orchestrator_pb2.StatsResponse:
    """What the orchestrator counted."""
    async with aio_channel(cluster.orchestrator.address) as channel:
        stub = orchestrator_pb2_grpc.OrchestratorServiceStub(channel)
        stats = await stub.Stats(orchestrator_pb2.StatsRequest(), timeout=10)
    assert isinstance(stats, orchestrator_pb2.StatsResponse)
    return stats
