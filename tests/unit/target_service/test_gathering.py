"""Streams that go in step share their passes; nobody waits in vain."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from draftproof.metrics.target import TargetMetrics
from draftproof.serving.model_thread import ModelThread
from draftproof.testing.table import ByteTokenizer, TableEngine
from draftproof.v1 import fingerprint_pb2, target_pb2
from target_service.gathering import Pace, PassTime, wait_until
from target_service.local import LocalPort
from target_service.verifier import Verifier, VerifierConfig

TOKENS = 20


def test_nobody_waits_alone() -> None:
    assert wait_until(0.0, 1, [], 1.0) is None
    assert wait_until(0.0, 3, [None, None], 1.0) is None, "who never came back is not expected"
    assert wait_until(5.0, 1, [4.0], 1.0) is None, "nor who is late"


def test_waiting_must_gain_more_than_it_costs() -> None:
    assert wait_until(10.0, 1, [10.1], 1.0) == 10.1
    assert wait_until(10.0, 1, [10.4], 1.0) == 10.4
    assert wait_until(10.0, 1, [10.6], 1.0) is None, "two passes one after another are sooner done"
    assert wait_until(10.0, 9, [10.2], 1.0) is None, "nine don't wait for one"
    assert wait_until(10.0, 9, [10.05], 1.0) == 10.05
    assert wait_until(10.0, 1, [10.1, 10.2, 10.3], 1.0) == 10.3
    assert wait_until(10.0, 1, [10.1, 10.9], 1.0) == 10.1, "the last of them is not worth it"
    assert wait_until(10.0, 1, [10.001], 0.0) is None, "before any pass was seen"


def test_a_session_is_expected_as_it_came_before() -> None:
    pace = Pace()
    assert pace.expected_at is None
    pace.came(1.0)
    assert pace.expected_at is None, "its first round says nothing"
    for start in range(40):
        pace.left(10.0 * start)
        pace.came(10.0 * start + 2.0)
        assert pace.expected_at is None, "it is here"
    pace.left(400.0)
    assert pace.expected_at == pytest.approx(402.0, abs=0.01)
    pace.came(406.0)
    pace.left(500.0)
    assert pace.expected_at is not None
    assert 503.0 < pace.expected_at < 506.0, "later, and less sure"


def test_a_pass_is_as_long_as_the_shortest_of_late() -> None:
    passes = PassTime()
    for seconds in (0.3, 0.1, 0.2):
        passes.learn(seconds)
    assert passes.seconds == pytest.approx(0.1, rel=0.05)
    for _ in range(100):
        passes.learn(0.2)
    assert passes.seconds == 0.2, "what was long ago is forgotten"


@pytest.mark.parametrize("streams", [1, 4])
async def test_streams_in_step_share_every_pass(streams: int) -> None:
    # a pass is so long that a busy machine can't make the streams late
    engine, thread = TableEngine(27, slots=4, delay=0.1), ModelThread("model")
    tokenizer = ByteTokenizer(27, first_byte=ord("a"))
    metrics = TargetMetrics(CollectorRegistry(), 4)
    verifier = Verifier(engine, tokenizer, VerifierConfig(), metrics, thread, lambda healthy: None)
    port = LocalPort(verifier, fingerprint_pb2.Fingerprint())
    running = asyncio.create_task(verifier.run())

    async def generate(first: int) -> None:
        sampling = {"max_tokens": TOKENS, "ignore_eos": True}
        session = await port.open(target_pb2.OpenSession(prompt_ids=[first, 2], sampling=sampling))
        for number in range(TOKENS):
            await session.verify(target_pb2.Block(start=2 + number))
            await asyncio.sleep(0.001 * first)  # what sending the chunk takes, each its own time
        await session.close()

    await asyncio.wait_for(asyncio.gather(*(generate(1 + i) for i in range(streams))), 20.0)
    running.cancel()
    thread.stop()
    # a first round each to get in step, and to know each other's pace
    assert TOKENS <= engine.passes <= TOKENS + 6, "the streams take turns"
