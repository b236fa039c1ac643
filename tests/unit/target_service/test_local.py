"""The target's own sessions: a slot lost to a waiting one is asked for again."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from draftproof.errors import InvalidArgumentError
from draftproof.metrics.target import TargetMetrics
from draftproof.serving.model_thread import ModelThread
from draftproof.testing.table import ByteTokenizer, TableEngine
from draftproof.v1 import fingerprint_pb2, target_pb2
from target_service.local import LocalPort
from target_service.verifier import Verifier, VerifierConfig


def opening() -> target_pb2.OpenSession:
    return target_pb2.OpenSession(prompt_ids=[1, 2], sampling={"seed": 1, "max_tokens": 6, "ignore_eos": True})


async def test_lost_slots_change_no_token() -> None:
    registry, thread = CollectorRegistry(), ModelThread("model")
    engine, tokenizer = TableEngine(27, slots=1), ByteTokenizer(27, first_byte=ord("a"))
    config = VerifierConfig(idle_evict=0.02)
    verifier = Verifier(engine, tokenizer, config, TargetMetrics(registry, 4), thread, lambda healthy: None)
    port = LocalPort(verifier, fingerprint_pb2.Fingerprint())
    running = asyncio.create_task(verifier.run())

    async def generate(pause: float) -> list[int]:
        session = await port.open(opening())
        found: list[int] = []
        while True:
            verdict = await session.verify(target_pb2.Block(start=2 + len(found)))
            found += [token.id for token in verdict.tokens]
            if verdict.finish_reason:
                await session.close()
                return found
            await asyncio.sleep(pause)

    alone = await generate(0)
    together = await asyncio.wait_for(asyncio.gather(*(generate(0.08) for _ in range(3))), 20.0)
    assert together == [alone] * 3
    assert registry.get_sample_value("draftproof_evicted_sessions_total")
    assert registry.get_sample_value("draftproof_stale_frames_total", {"what": "session"}) == 0
    with pytest.raises(InvalidArgumentError):
        await port.open(target_pb2.OpenSession())
    assert not verifier._sessions
    running.cancel()
    thread.stop()
