"""What clients see of a cluster: cancel, lists, sums, deadlines, workers that come and go, orchestrators that go."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import grpc
import pytest

from draftproof import Completion
from draftproof.client import NO_RETRIES
from draftproof.errors import (
    DeadlineExceededError,
    DrainingError,
    InternalError,
    InvalidArgumentError,
    OverloadedError,
    PeerUnavailableError,
    RequestCancelledError,
    RequestError,
)
from draftproof.rpc.channel import aio_channel
from draftproof.rpc.status import from_rpc_error
from draftproof.serving.options import ListenConfig
from draftproof.testing.table import ByteTokenizer, TableEngine
from draftproof.v1 import generation_pb2, generation_pb2_grpc, orchestrator_pb2, sampling_pb2, verdict_pb2
from orchestrator.front_door import Totals
from orchestrator.workers import Role, State
from tests.integration.orchestrator.conftest import Build
from tests.integration.orchestrator.harness import RELAY, Cluster, check_same
from tests.integration.orchestrator.test_failover import Stuck, StuckEngine, tokens_committed
from tests.integration.services.harness import PATIENCE, letters, model_drafter, table, until

LONG: dict[str, Any] = {"max_tokens": 200, "ignore_eos": True}


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """An open gate; open again at the end, or threads would wait for ever."""
    made = threading.Event()
    made.set()
    yield made
    made.set()


async def cancel(cluster: Cluster, name: str) -> int:
    answer = await cluster.steering().Cancel(orchestrator_pb2.CancelRequest(request_id=name))
    return int(answer.cancelled)


async def check_cancelled(running: asyncio.Task[Completion]) -> None:
    with pytest.raises(RequestError) as caught:
        await asyncio.wait_for(running, 5.0)
    assert isinstance(caught.value, RequestCancelledError) or "cancelled by name" in caught.value.message


# -- cancel by name ----------------------------------------------------------------------------------------------


async def test_cancel_while_it_waits_for_admission(cluster: Build) -> None:
    built = await cluster(engine=lambda: table(slots=1, delay=0.01), queue_share=1.0)
    client = built.client(retries=NO_RETRIES)
    first = asyncio.create_task(client.generate("hello", request_id="first", **LONG))
    await until(lambda: built.app._admission.running == 1)
    second = asyncio.create_task(client.generate("hello", request_id="second", **LONG))
    await until(lambda: built.app._admission.waiting == 1)
    assert await cancel(built, "second") == 1
    await check_cancelled(second)
    assert built.app._admission.waiting == 0
    assert await cancel(built, "first") == 1
    await check_cancelled(first)
    await built.idle()


async def test_cancel_while_no_worker_is_ready(cluster: Build) -> None:
    built = await cluster()
    client = built.client(retries=NO_RETRIES)
    running = asyncio.create_task(client.generate("hello", request_id="it", **LONG))
    await tokens_committed(built, 5)
    await built.kill(built.targets[0])
    await until(lambda: built.worker(built.targets[0]).state is not State.READY)
    await asyncio.sleep(0.3)
    assert await cancel(built, "it") == 1
    await check_cancelled(running)


@pytest.mark.parametrize("phase", ["opening", "drafting", "verifying", "target_only"])
async def test_cancel_while_a_worker_is_busy_with_it(cluster: Build, gate: threading.Event, phase: str) -> None:
    changes: dict[str, Any] = {}
    if phase == "drafting":
        changes["drafter"] = lambda: Stuck(gate)
    elif phase == "opening":
        changes["engine"] = lambda: table(slots=1, delay=0.01)
        changes["queue_share"] = 2.0
    else:
        changes["engine"] = lambda: StuckEngine(gate)
    built = await cluster(**changes)
    client = built.client(retries=NO_RETRIES)
    options = {"gamma": 0, **LONG} if phase == "target_only" else {"seed": 1, **LONG}
    tasks = [asyncio.create_task(client.generate("hello", request_id="other", **options))]
    await tokens_committed(built, 3)
    if phase == "opening":
        tasks.append(asyncio.create_task(client.generate("hello", request_id="it", **options)))
        target: Any = built.targets[0].app
        await until(lambda: target._verifier.waiting == 1)
        assert await cancel(built, "it") == 1
        await check_cancelled(tasks.pop())
        await until(lambda: target._verifier.waiting == 0)
    else:
        gate.clear()
        await asyncio.sleep(0.05)
    assert await cancel(built, "other") == 1
    await check_cancelled(tasks.pop())
    gate.set()
    await built.idle()


async def test_cancel_of_a_caller_that_does_not_read(cluster: Build) -> None:
    built = await cluster(
        engine=lambda: TableEngine(257, slots=1, max_context=100_000),
        drafter=lambda: model_drafter(TableEngine(257, noise=0.1, slots=1, max_context=100_000)),
        tokenizer=lambda: ByteTokenizer(257),
        gamma=8,
    )
    channel = aio_channel(built.address)
    call = generation_pb2_grpc.GenerationServiceStub(channel).Generate(
        generation_pb2.GenerateRequest(
            text="hello",
            request_id="it",
            sampling=sampling_pb2.SamplingParams(ignore_eos=True),
            trace={"top_n": 0},
        )
    )
    await call.read()
    committed = 0
    async with asyncio.timeout(60):
        # it runs until its buffers are full
        while committed <= 100 or committed != built.app._door.totals.committed:
            committed = built.app._door.totals.committed
            await asyncio.sleep(0.3)
    assert await cancel(built, "it") == 1
    await built.idle()

    # once it reads again it hears of the end, behind what was on its way
    async def read_on() -> None:
        while True:
            await call.read()

    with pytest.raises(grpc.RpcError) as caught:
        await asyncio.wait_for(read_on(), PATIENCE)
    assert isinstance(from_rpc_error(caught.value), RequestCancelledError)
    await channel.close()


async def test_cancel_takes_all_of_a_name_and_nobody_else(cluster: Build) -> None:
    built = await cluster()
    client = built.client(retries=NO_RETRIES)
    same = [asyncio.create_task(client.generate("hello", request_id="same", **LONG)) for _ in range(3)]
    other = asyncio.create_task(client.generate("hello", request_id="other", **LONG))
    await until(lambda: built.outstanding() == 8)
    assert await cancel(built, "same") == 3
    assert await cancel(built, "same") == 0
    assert await cancel(built, "nobody") == 0
    for running in same:
        await check_cancelled(running)
    assert len((await other).token_ids) == 200
    with pytest.raises(grpc.RpcError) as caught:
        await cancel(built, "")
    assert isinstance(from_rpc_error(caught.value), InvalidArgumentError)
    stats = await built.stats()
    assert stats.finished == 1
    await built.idle()


async def test_a_cancel_in_the_middle_of_the_first_message_is_heard(
    cluster: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC takes no second initial metadata while the first is on its way: the caller would wait for ever."""
    built = await cluster()
    door = built.app._door
    add = Totals.add

    def cancelling(totals: Totals, event: generation_pb2.GenerateResponse) -> None:
        add(totals, event)
        door.requests.cancel("it")

    monkeypatch.setattr(Totals, "add", cancelling)
    client = built.client(retries=NO_RETRIES)
    await check_cancelled(asyncio.create_task(client.generate("hello", request_id="it", **LONG)))
    await built.idle()


async def test_a_caller_that_leaves_frees_everything(cluster: Build) -> None:
    built = await cluster()
    client = built.client()
    for _ in range(20):
        async with client.stream("hello", **LONG) as stream:
            await anext(stream)
    await built.idle()


# -- lists and sums ----------------------------------------------------------------------------------------------


async def test_workers_are_listed(cluster: Build) -> None:
    built = await cluster(targets=2, drafts=1, extra=((Role.DRAFT, "127.0.0.1:9"),))
    answer = await built.steering().ListWorkers(orchestrator_pb2.ListWorkersRequest())
    workers = list(answer.workers)
    assert [w.role for w in workers] == [1, 1, 2, 2], "drafts first"
    by_address = {w.address: w for w in workers}
    nobody = by_address.pop("127.0.0.1:9")
    assert nobody.state == orchestrator_pb2.WORKER_STATE_STARTING
    assert nobody.problem
    for node in (*built.targets, *built.drafts):
        worker = by_address.pop(node.address)
        assert worker.state == orchestrator_pb2.WORKER_STATE_READY
        assert worker.name.endswith(node.address)
        assert worker.fingerprint.vocab_size == 27
        assert worker.slots in (8, 32)
        assert worker.pid
        assert not worker.problem
    assert not by_address


async def test_sums_are_those_of_the_streams(cluster: Build) -> None:
    built = await cluster()
    client = built.client()
    completions = [await client.generate("hello", seed=i, max_tokens=20, ignore_eos=True) for i in range(5)]
    with pytest.raises(InvalidArgumentError):
        await client.generate("hello", sampling=None, gamma=99)
    stats = await built.stats()
    assert stats.finished == 5
    assert stats.committed == sum(c.stats.committed for c in completions) == 100
    assert stats.drafted == sum(c.stats.drafted for c in completions) > 0
    assert stats.accepted == sum(c.stats.accepted for c in completions)
    assert stats.rounds == sum(c.stats.rounds for c in completions)
    assert stats.failed == {"INVALID_ARGUMENT": 1}
    assert (stats.running, stats.waiting) == (0, 0)
    assert stats.uptime.ToTimedelta().total_seconds() > 0


async def test_the_cluster_describes_itself_as_one_server(cluster: Build) -> None:
    built = await cluster(targets=2, drafts=1)
    info = await built.client().info()
    assert info.role == "orchestrator"
    assert info.slots == 16
    assert info.max_gamma == 16
    assert info.default_gamma == 4
    assert info.target.vocab_size == 27
    assert info.draft is not None
    assert info.drafter == info.draft.model
    assert sorted(info.targets) == sorted(node.address for node in built.targets)
    assert info.chat_template


async def test_without_a_target_the_cluster_says_so(cluster: Build) -> None:
    built = await cluster(targets=0, drafts=1, relay=replace(RELAY, no_worker=0.2))
    client = built.client(retries=NO_RETRIES)
    with pytest.raises(PeerUnavailableError, match="no target"):
        await client.generate("hello", **LONG)
    with pytest.raises(grpc.RpcError):
        await generation_pb2_grpc.GenerationServiceStub(aio_channel(built.address)).GetServerInfo(
            generation_pb2.GetServerInfoRequest(), timeout=5
        )
    assert not built.app.server._health._serving  # type: ignore[union-attr]


# -- the queue ---------------------------------------------------------------------------------------------------


async def test_a_deadline_in_the_queue(cluster: Build) -> None:
    built = await cluster(engine=lambda: table(slots=1, delay=0.02), queue_share=1.0)
    client = built.client(retries=NO_RETRIES)
    first = asyncio.create_task(client.generate("hello", **LONG))
    await until(lambda: built.app._admission.running == 1)
    started = time.monotonic()
    with pytest.raises(DeadlineExceededError):
        await client.generate("hello", timeout=0.2, **LONG)
    assert time.monotonic() - started < 1.0
    await until(lambda: built.app._admission.waiting == 0)
    first.cancel()
    await built.idle()


async def test_a_full_queue_refuses_at_once_and_higher_priority_goes_first(cluster: Build) -> None:
    built = await cluster(engine=lambda: table(slots=1, delay=0.002), queue_share=1.0, queue_limit=4)
    stub = generation_pb2_grpc.GenerationServiceStub(aio_channel(built.address))
    order: list[str] = []

    async def one(name: str, priority: int) -> None:
        request = generation_pb2.GenerateRequest(
            text="hello",
            request_id=name,
            priority=priority,
            sampling=sampling_pb2.SamplingParams(max_tokens=100, ignore_eos=True),
        )
        async for event in stub.Generate(request):
            if event.HasField("started"):
                order.append(name)

    tasks = []
    for index, (name, priority) in enumerate((("a", 0), ("b", 0), ("c", 0), ("d", 7), ("e", -7))):
        tasks.append(asyncio.create_task(one(name, priority)))
        await until(lambda: built.app._admission.running + built.app._admission.waiting == index + 1)  # noqa: B023
    started = time.monotonic()
    with pytest.raises(OverloadedError) as caught:
        await built.client(retries=NO_RETRIES).generate("hello")
    assert time.monotonic() - started < 0.5
    assert caught.value.metadata["setting"] == "queue_limit"
    assert caught.value.retry_delay
    await asyncio.gather(*tasks)
    assert order == list("adbce")
    with pytest.raises(grpc.RpcError) as refused:
        await one("f", 101)
    assert from_rpc_error(refused.value).metadata["field"] == "priority"


# -- workers come and go -----------------------------------------------------------------------------------------


async def test_workers_come_and_go(cluster: Build) -> None:
    built = await cluster(targets=1, drafts=1)
    client = built.client()
    before = await client.generate("hello", seed=1, max_tokens=20, ignore_eos=True)
    draft, target = built.worker(built.drafts[0]), built.worker(built.targets[0])
    await built.kill(built.drafts[0])
    await until(lambda: draft.state is not State.READY)
    alone = await client.generate("hello", temperature=0.0, max_tokens=20, ignore_eos=True)
    assert alone.drafter == ""
    await asyncio.sleep(0.8)  # past `lost_after`: the orchestrator has given it up
    await built.restart(built.drafts, 0)
    await built.ready()
    assert built.worker(built.drafts[0]) is not draft, "another life"
    await built.kill(built.targets[0])
    await until(lambda: target.state is not State.READY)
    await built.restart(built.targets, 0)
    await built.ready()
    after = await client.generate("hello", seed=1, max_tokens=20, ignore_eos=True)
    assert after.token_ids == before.token_ids
    assert after.drafter == before.drafter


async def test_gamma_0_on_one_request_touches_nobody_else(cluster: Build) -> None:
    built = await cluster()
    client = built.client()
    alone = await client.generate("hello", seed=1, **LONG)
    others = [asyncio.create_task(client.generate("hello", seed=1, **LONG)) for _ in range(3)]
    plain = await client.generate("hello", seed=1, gamma=0, **LONG)
    assert plain.stats.drafted == 0
    assert plain.gamma == 0
    for completion in await asyncio.gather(*others):
        assert completion.gamma == 4
        check_same(completion, alone)
        assert completion.stats == replace(
            alone.stats, time=completion.stats.time, expected_accepted=completion.stats.expected_accepted
        )


async def test_requests_of_one_prefix_meet_its_kv_again(cluster: Build) -> None:
    built = await cluster(targets=3)
    client = built.client()
    system = "abcdefgh" * 20
    engines: list[TableEngine] = [node.app._verifier._engine for node in built.targets]  # type: ignore[union-attr, misc]
    first = await client.generate(system + "one", seed=1, max_tokens=4, ignore_eos=True)
    fed = sum(engine.fed for engine in engines)
    assert fed > 160
    again = await client.generate(system + "one", seed=1, max_tokens=4, ignore_eos=True)
    await client.generate(system + "two", seed=1, max_tokens=4, ignore_eos=True)
    assert again.token_ids == first.token_ids
    assert sum(engine.fed for engine in engines) - fed < 60
    assert sum(node.count("reused_prefix_tokens_total") for node in built.targets) >= 2 * 160


# -- orchestrators go --------------------------------------------------------------------------------------------


async def test_a_drain_lets_running_requests_finish_and_takes_no_new_ones(cluster: Build) -> None:
    built = await cluster(engine=lambda: table(slots=1, delay=0.005), queue_share=1.0)
    client = built.client(retries=NO_RETRIES)
    running = asyncio.create_task(client.generate("hello", **LONG))
    await until(lambda: built.app._admission.running == 1)
    queued = asyncio.create_task(client.generate("hello", **LONG))
    await until(lambda: built.app._admission.waiting == 1)
    draining = asyncio.create_task(built.app.drain())
    with pytest.raises(DrainingError):
        await queued
    with pytest.raises(DrainingError):
        await client.generate("hello")
    assert len((await running).token_ids) == 200
    await asyncio.wait_for(draining, 5.0)


@pytest.mark.parametrize("how", ["killed", "drained"])
@pytest.mark.parametrize("settings", [{"seed": 5}, {"temperature": 0.0}])
async def test_the_sdk_goes_on_with_the_orchestrator_s_successor(
    cluster: Build, how: str, settings: dict[str, Any]
) -> None:
    built = await cluster(listen=ListenConfig(grace=0.1))
    client = built.client()
    alone = await client.generate("hello", **settings, **LONG)
    running = asyncio.create_task(client.generate("hello", **settings, **LONG))
    await tokens_committed(built, 40)
    node = built.orchestrators[-1]
    if how == "killed":
        await node.kill()
    else:
        await node.app.drain()
        await node.kill()
    await built.orchestrate(node.port)
    completion = await running
    check_same(completion, alone)
    assert completion.request_key == alone.request_key or "seed" not in settings
    assert any("resumed after" in note for note in completion.notes)
    await built.idle()


@pytest.mark.parametrize("who", ["orchestrator", "draft", "target"])
@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"max_tokens": 5}, verdict_pb2.FINISH_REASON_LENGTH),
        ({"stop_token_ids": [4], "max_tokens": 50}, verdict_pb2.FINISH_REASON_STOP),
    ],
)
async def test_a_finished_prefix_is_finished(
    cluster: Build, proxy_stub: Any, who: str, settings: dict[str, Any], reason: int
) -> None:
    built = await cluster()
    prompt, output = letters().encode("hello"), letters().encode("abcde")
    resume = generation_pb2.Resume(request_key=bytes(range(32)), output_ids=output)
    request = generation_pb2.GenerateRequest(
        text="hello", sampling=sampling_pb2.SamplingParams(ignore_eos=True, **settings), resume=resume
    )
    events = [event async for event in proxy_stub(built, who, request)]
    assert [event.WhichOneof("event") for event in events] == ["started", "finished"]
    assert events[0].started.request_key == resume.request_key
    assert list(events[0].started.prompt_ids) == prompt
    finished = events[1].finished
    assert finished.finish_reason == reason
    assert finished.lossless
    assert (finished.usage.prompt_tokens, finished.usage.completion_tokens) == (5, 0)
    await built.idle()


@pytest.fixture
def proxy_stub() -> Any:
    """Generate at one of the servers, directly."""
    from draftproof.v1 import draft_pb2, draft_pb2_grpc

    async def generate(built: Cluster, who: str, request: generation_pb2.GenerateRequest) -> Any:
        if who == "draft":
            channel = aio_channel(built.drafts[0].address)
            routed = draft_pb2.DraftRequest(generation=request, target=built.targets[0].address)
            async for message in draft_pb2_grpc.DraftServiceStub(channel).Draft(routed):
                yield message.event
        else:
            channel = aio_channel(built.address if who == "orchestrator" else built.targets[0].address)
            async for event in generation_pb2_grpc.GenerationServiceStub(channel).Generate(request):
                yield event
        await channel.close()

    return generate


async def test_a_worker_lost_between_the_last_token_and_the_end(cluster: Build, monkeypatch: Any) -> None:
    from draftproof.serving import generation

    built = await cluster()
    client = built.client()
    alone = await client.generate("hello", seed=2, max_tokens=30, ignore_eos=True)
    honest, lost = generation.finished, []

    def finished(*arguments: Any) -> generation_pb2.GenerateResponse:
        if not lost:
            lost.append(True)
            raise InternalError("gone")
        return honest(*arguments)

    monkeypatch.setattr(generation, "finished", finished)
    completion = await client.generate("hello", seed=2, max_tokens=30, ignore_eos=True)
    check_same(completion, alone)
    assert lost
    assert (await built.stats()).fallbacks == {"draft_lost": 1}
