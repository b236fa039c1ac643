"""The drafting loop: batches, order, callers that leave, drafters that break."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry

from draft_service.drafters.interface import Guess, OpenBlock
from draft_service.loop import DraftLoop
from draftproof.metrics.draft import DraftMetrics
from draftproof.sampling.draft_q import OneHot
from draftproof.sampling.params import SamplingParams
from draftproof.serving.drafting import DraftSequence, Proposal
from draftproof.serving.model_thread import ModelThread


class Counting:
    """Proposes 0, 1, 2, … one a step, and keeps what it was given."""

    name = "counting"
    weights_sha256 = b""
    forward_ns = 0

    def __init__(self, width: int = 2, on_step: Callable[[Sequence[OpenBlock]], None] = lambda blocks: None) -> None:
        self.width = width
        self.batches: list[list[DraftSequence]] = []
        self.released: list[DraftSequence] = []
        self._on_step = on_step

    def step(self, blocks: Sequence[OpenBlock]) -> None:
        self.batches.append([block.sequence for block in blocks])
        self._on_step(blocks)
        for block in blocks:
            token = len(block.proposals)
            block.proposals.append(Proposal(token, OneHot(token)))

    def guesses(self, of: DraftSequence, position: int, proposals: Sequence[Proposal]) -> list[Guess]:
        return [Guess(len(proposals), 8)]

    def release(self, of: DraftSequence) -> None:
        self.released.append(of)


def sequence() -> DraftSequence:
    return DraftSequence([1], SamplingParams(), bytes(32))


@asynccontextmanager
async def running(
    drafter: Counting, stall_timeout: float = 30.0, on_health: Callable[[bool], None] = lambda healthy: None
) -> AsyncIterator[tuple[DraftLoop, CollectorRegistry]]:
    registry, thread = CollectorRegistry(), ModelThread("draft")
    loop = DraftLoop(drafter, thread, DraftMetrics(registry), stall_timeout, on_health)
    task = asyncio.create_task(loop.run())
    try:
        yield loop, registry
    finally:
        task.cancel()
        thread.stop()


def ids(proposals: Sequence[Proposal]) -> list[int]:
    return [p.token_id for p in proposals]


async def test_blocks_are_finished_in_order_before_others_begin() -> None:
    drafter = Counting(width=2)
    made = [sequence() for _ in range(4)]
    async with running(drafter) as (loop, _):
        found = await asyncio.gather(*(loop.propose(of, 3) for of in made))
    assert [ids(proposals) for proposals in found] == [[0, 1, 2]] * 4
    assert drafter.batches == [made[:2]] * 3 + [made[2:]] * 3, "taking turns would thrash a full cache"


async def test_a_free_place_is_filled_at_once() -> None:
    drafter = Counting(width=2)
    a, b, c = sequence(), sequence(), sequence()
    async with running(drafter) as (loop, _):
        await asyncio.gather(loop.propose(a, 1), loop.propose(b, 3), loop.propose(c, 2))
    assert drafter.batches == [[a, b], [b, c], [b, c]]


async def test_no_gamma_no_work() -> None:
    drafter = Counting()
    async with running(drafter) as (loop, _):
        assert await loop.propose(sequence(), 0) == []
        await asyncio.sleep(0.02)
    assert drafter.batches == []


async def test_a_caller_that_leaves_is_forgotten() -> None:
    drafter = Counting(width=1)
    gone, stays = sequence(), sequence()
    async with running(drafter) as (loop, _):
        leaving = asyncio.create_task(loop.propose(gone, 10_000))
        await asyncio.sleep(0.02)
        leaving.cancel()
        loop.release(gone)
        assert ids(await loop.propose(stays, 2)) == [0, 1]
        assert drafter.released == [gone]
        assert gone not in drafter.batches[-1]
        assert not [entry for entry in loop._open if not entry[1].done()]


async def test_a_broken_step_ends_its_blocks_with_what_was_drawn() -> None:
    def break_third(blocks: Sequence[OpenBlock]) -> None:
        if len(drafter.batches) == 3:
            raise RuntimeError("a bug")

    drafter = Counting(on_step=break_third)
    async with running(drafter) as (loop, registry):
        found = await asyncio.gather(loop.propose(sequence(), 5), loop.propose(sequence(), 5))
        assert [ids(proposals) for proposals in found] == [[0, 1], [0, 1]], "a drawn proposal is never dropped"
        assert registry.get_sample_value("draftproof_drafting_failures_total") == 2
        assert ids(await loop.propose(sequence(), 2)) == [0, 1]


async def test_more_than_asked_for_is_cut() -> None:
    def flood(blocks: Sequence[OpenBlock]) -> None:
        for block in blocks:
            block.proposals += [Proposal(7, OneHot(7))] * 9

    async with running(Counting(on_step=flood)) as (loop, _):
        assert ids(await loop.propose(sequence(), 3)) == [7, 7, 7]


async def test_a_hung_step_costs_proposals_not_requests() -> None:
    """L10: until the call returns nothing is drafted and nobody waits; then drafting goes on."""
    free = threading.Event()

    def hang_third(blocks: Sequence[OpenBlock]) -> None:
        if len(drafter.batches) == 3:
            free.wait(60.0)

    drafter = Counting(width=1, on_step=hang_third)
    health: list[bool] = []
    async with running(drafter, stall_timeout=0.1, on_health=health.append) as (loop, registry):
        try:
            found = await asyncio.wait_for(asyncio.gather(loop.propose(sequence(), 5), loop.propose(sequence(), 5)), 20)
            assert [ids(proposals) for proposals in found] == [[0, 1], []], "what was drawn before is sent"
            assert await asyncio.wait_for(loop.propose(sequence(), 5), 20) == []
            assert registry.get_sample_value("draftproof_drafting_failures_total") == 2
            assert health == [False]
        finally:
            free.set()
        async with asyncio.timeout(20):
            while True:
                again = ids(await loop.propose(sequence(), 2))
                if again:
                    break
                await asyncio.sleep(0.01)
        assert again == [0, 1]
        assert health == [False, True]


async def settled(drafter: Counting, steps: int) -> None:
    """Waits until so many steps were taken, and a while for one more."""
    async with asyncio.timeout(20):
        while True:
            if len(drafter.batches) >= steps:
                break
            await asyncio.sleep(0.001)
    await asyncio.sleep(0.02)


async def test_a_block_drafted_ahead_is_there_at_once() -> None:
    drafter = Counting()
    of = sequence()
    async with running(drafter) as (loop, registry):
        proposals = await loop.propose(of, 2)
        loop.ahead(of, proposals, 3, 20)
        await settled(drafter, 5)
        assert len(drafter.batches) == 5
        of.output_ids += [0, 1, 8]
        assert ids(await loop.propose(of, 3)) == [0, 1, 2]
        assert len(drafter.batches) == 5, "nothing was left to do"
        assert registry.get_sample_value("draftproof_ahead_rounds_total", {"outcome": "used"}) == 1
        assert registry.get_sample_value("draftproof_ahead_proposals_dropped_total") == 0
        assert not loop._ahead


async def test_a_wrong_guess_is_dropped_and_counted() -> None:
    drafter = Counting()
    of = sequence()
    async with running(drafter) as (loop, registry):
        loop.ahead(of, await loop.propose(of, 2), 3, 20)
        await settled(drafter, 5)
        of.output_ids += [0, 1, 7]
        assert ids(await loop.propose(of, 3)) == [0, 1, 2]
        assert len(drafter.batches) == 8
        assert registry.get_sample_value("draftproof_ahead_rounds_total", {"outcome": "dropped"}) == 1
        assert registry.get_sample_value("draftproof_ahead_proposals_dropped_total") == 3


async def test_who_is_waited_for_comes_first() -> None:
    """Work ahead stops between two steps, and goes on with what was done once there is time."""
    gate = threading.Semaphore(0)
    drafter = Counting(on_step=lambda blocks: gate.acquire(timeout=20.0) and None)
    early, late = sequence(), sequence()
    async with running(drafter) as (loop, _):
        gate.release(1)
        loop.ahead(early, await loop.propose(early, 1), 4, 20)
        gate.release(1)
        await settled(drafter, 3)
        waiting = asyncio.create_task(loop.propose(late, 3))
        gate.release(100)
        assert ids(await waiting) == [0, 1, 2]
        assert drafter.batches[3:6] == [[late]] * 3
        await settled(drafter, 8)
        early.output_ids += [0, 8]
        assert ids(await loop.propose(early, 4)) == [0, 1, 2, 3]
        assert len(drafter.batches) == 8


async def test_a_half_drafted_block_is_finished_after_its_verdict() -> None:
    gate = threading.Semaphore(0)
    drafter = Counting(on_step=lambda blocks: gate.acquire(timeout=20.0) and None)
    of = sequence()
    async with running(drafter) as (loop, _):
        gate.release(1)
        loop.ahead(of, await loop.propose(of, 1), 3, 20)
        gate.release(1)
        await settled(drafter, 3)
        of.output_ids += [0, 8]
        waiting = asyncio.create_task(loop.propose(of, 3))
        await asyncio.sleep(0.01)
        gate.release(100)
        assert ids(await waiting) == [0, 1, 2]
        assert len(drafter.batches) == 4, "the step under way when the verdict came counts, too"


async def test_a_released_request_is_not_drafted_for() -> None:
    drafter = Counting()
    of = sequence()
    async with running(drafter) as (loop, _):
        loop.ahead(of, await loop.propose(of, 1), 10_000, 20_000)
        await settled(drafter, 3)
        loop.release(of)
        await asyncio.sleep(0.02)
        steps = len(drafter.batches)
        await asyncio.sleep(0.05)
        assert len(drafter.batches) == steps
        assert (drafter.released, loop._ahead) == ([of], {})


async def test_a_step_ahead_that_breaks_costs_nothing() -> None:
    def break_second(blocks: Sequence[OpenBlock]) -> None:
        if len(drafter.batches) == 3:
            raise RuntimeError("a bug")

    drafter = Counting(on_step=break_second)
    of = sequence()
    async with running(drafter) as (loop, registry):
        loop.ahead(of, await loop.propose(of, 1), 3, 20)
        await settled(drafter, 3)
        of.output_ids += [0, 8]
        assert ids(await loop.propose(of, 3)) == [0, 1, 2]
        assert registry.get_sample_value("draftproof_drafting_failures_total") == 0
