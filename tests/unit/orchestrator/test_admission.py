"""Turns, priorities, and those who are told at once that they can't have one."""

from __future__ import annotations

import asyncio
import time

import pytest

from draftproof.errors import DeadlineExceededError, DrainingError, OverloadedError, PeerUnavailableError
from orchestrator.admission import Admission


class Gate:
    """An admission whose requests end when the test says so."""

    def __init__(self, capacity: int, queue_limit: int = 8, no_capacity: float = 30.0) -> None:
        self.capacity = capacity
        self.admission = Admission(lambda: self.capacity, queue_limit, no_capacity)
        self.order: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def come(self, name: str, priority: int = 0, patience: float | None = None) -> None:
        end = self._ends[name] = asyncio.Event()

        async def request() -> None:
            async with self.admission.enter(priority, patience):
                self.order.append(name)
                await end.wait()

        self.tasks[name] = asyncio.create_task(request())
        await settle()

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await settle()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_higher_priority_first_then_order_of_arrival() -> None:
    gate = Gate(1)
    for name, priority in (("a", 0), ("b", 0), ("c", 5), ("d", -1), ("e", 5)):
        await gate.come(name, priority)
    assert (gate.admission.running, gate.admission.waiting) == (1, 4)
    for name in "aceb":
        await gate.end(name)
    assert gate.order == list("acebd")
    await gate.end("d")
    assert (gate.admission.running, gate.admission.waiting) == (0, 0)


@pytest.mark.parametrize("limit", [0, 2])
async def test_a_full_queue_refuses_at_once_with_a_hint(limit: int) -> None:
    gate = Gate(1, limit)
    for i in range(1 + limit):
        await gate.come(str(i))
    started = time.monotonic()
    with pytest.raises(OverloadedError) as caught:
        async with gate.admission.enter(100, None):
            raise AssertionError("admitted")
    assert time.monotonic() - started < 0.1
    assert caught.value.metadata == {"setting": "queue_limit", "limit": str(limit)}
    assert caught.value.retry_delay is not None
    assert 0.05 <= caught.value.retry_delay <= 5.0


async def test_a_deadline_ends_the_wait_and_frees_the_place() -> None:
    gate = Gate(1, 1)
    await gate.come("a")
    await gate.come("b", patience=0.05)
    with pytest.raises(DeadlineExceededError):
        await gate.tasks["b"]
    assert gate.admission.waiting == 0
    await gate.come("c")
    await gate.end("a")
    assert gate.order == ["a", "c"]


async def test_who_leaves_the_queue_leaves_nothing_behind() -> None:
    gate = Gate(0, 4)
    for i in range(1000):
        await gate.come(str(i))
        gate.tasks[str(i)].cancel()
        await settle()
    assert gate.admission.waiting == 0
    assert gate.admission._queue == []
    gate.capacity = 1
    await gate.come("last")
    assert gate.order == ["last"]


async def test_a_turn_that_comes_as_its_owner_leaves_goes_to_the_next() -> None:
    gate = Gate(1, 4)
    for name in "abc":
        await gate.come(name)
    gate._ends["a"].set()
    await asyncio.sleep(0)
    gate.tasks["b"].cancel()
    await settle()
    assert gate.order == ["a", "c"]
    gate.tasks["c"].cancel()
    gate.admission.wake()
    await settle()
    assert gate.admission.running == 0


async def test_cancelled_before_its_turn_is_given_out() -> None:
    gate = Gate(1, 4)
    await gate.come("a")
    await gate.come("b")
    gate.tasks["b"].cancel()
    gate.capacity = 2
    gate.admission.wake()
    await settle()
    assert gate.admission.running == 1
    assert gate.admission.waiting == 0


async def test_capacity_that_comes_lets_those_that_wait_in() -> None:
    gate = Gate(0)
    for name in "abc":
        await gate.come(name)
    gate.capacity = 2
    gate.admission.wake()
    await settle()
    assert gate.order == ["a", "b"]


async def test_nobody_waits_for_ever_where_there_is_no_capacity() -> None:
    gate = Gate(0, no_capacity=0.05)
    await gate.come("a")
    await gate.come("b")
    for name in "ab":
        with pytest.raises(PeerUnavailableError):
            await gate.tasks[name]
    assert gate.admission.waiting == 0
    await gate.come("c")
    gate.capacity = 1
    gate.admission.wake()
    await asyncio.sleep(0.1)
    assert gate.order == ["c"], "the alarm was for an earlier time without capacity"


async def test_those_that_wait_can_be_refused() -> None:
    gate = Gate(1)
    await gate.come("a")
    await gate.come("b")
    gate.admission.refuse(DrainingError("going"))
    with pytest.raises(DrainingError):
        await gate.tasks["b"]
    await gate.end("a")
    assert gate.admission.running == 0
