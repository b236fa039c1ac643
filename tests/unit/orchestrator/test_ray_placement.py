"""Ray is never waited for without end, and what a worker takes of a node."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from draftproof.errors import ConfigError
from orchestrator.ray_placement import LOCAL, RayConfig, RayPlacement, Resources, connect, first_line
from orchestrator.ray_worker import Neighbours, threads
from orchestrator.supervisor import PlacementError


@pytest.fixture
def hanging() -> Iterator[threading.Event]:
    """Set at the end, so that no thread outlives its test."""
    release = threading.Event()
    yield release
    release.set()


def placement(call_timeout: float = 0.05) -> RayPlacement:
    return RayPlacement(RayConfig(crews={}, call_timeout=call_timeout))


async def test_a_call_that_hangs_is_given_up(hanging: threading.Event) -> None:
    with pytest.raises(PlacementError, match=r"did not answer within 0\.05 s"):
        await placement()._ask(hanging.wait)


async def test_calls_that_hang_hold_up_no_other(hanging: threading.Event) -> None:
    ray = placement()
    stuck = [asyncio.create_task(ray._ask(hanging.wait)) for _ in range(5)]
    assert await ray._ask(lambda: "answer") == "answer"
    for task in stuck:
        with pytest.raises(PlacementError):
            await task


async def test_threads_that_hang_are_bounded(hanging: threading.Event) -> None:
    ray = placement()
    for _ in range(16):
        with pytest.raises(PlacementError, match="within"):
            await ray._ask(hanging.wait)
    with pytest.raises(PlacementError, match="Ray does not answer"):
        await ray._ask(lambda: "never called")
    hanging.set()
    async with asyncio.timeout(10):
        while ray._stuck:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert await ray._ask(lambda: "again") == "again"


async def test_an_error_reaches_the_caller() -> None:
    def fail() -> None:
        raise ValueError("no such actor")

    with pytest.raises(ValueError, match="no such actor"):
        await placement()._ask(fail)


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:1", "127.0.0.1:port"])
def test_no_cluster_at_the_address(address: str) -> None:
    with pytest.raises(ConfigError, match="ray_address"):
        connect(RayConfig(crews={}, address=address))


def test_workers_of_a_local_cluster_end_with_it() -> None:
    assert not placement().outlives
    assert RayPlacement(RayConfig(crews={}, address="host:6379")).outlives
    assert RayConfig(crews={}).address == LOCAL


@pytest.mark.parametrize(
    ("resources", "node", "fits"),
    [
        (Resources(), {}, 1),
        (Resources(custom="draft"), {"draft": 2.0}, 2),
        (Resources(custom="draft"), {"target": 2.0}, 0),
        (Resources(num_gpus=2), {"GPU": 5.0}, 2),
        (Resources(num_gpus=0.5), {"GPU": 2.0}, 4),
        (Resources(num_gpus=0.4), {"GPU": 2.0}, 4),  # a share never spans two GPUs
        (Resources(num_gpus=1), {}, 0),
        (Resources(num_gpus=1, custom="target"), {"GPU": 4.0, "target": 1.0}, 1),
    ],
)
def test_how_many_fit_a_node(resources: Resources, node: dict[str, float], fits: int) -> None:
    assert resources.fit(node) == fits


def test_no_share_of_two_gpus() -> None:
    with pytest.raises(ConfigError):
        Resources(num_gpus=1.5)


def test_workers_share_the_cores_of_their_node() -> None:
    pair = [Neighbours("", 1, 1.0), Neighbours("", 1, 0.5)]
    assert threads(12, 1.0, {}, 1, pair) == 12  # its draft waits while it runs
    assert threads(12, 0.5, {}, 1, pair) == 4
    assert threads(12, 1.0, {}, 1, [Neighbours("", 1, 1.0), Neighbours("", 1, 0.0)]) == 12
    assert threads(12, 1.0, {}, 1, [Neighbours("", 2, 1.0), Neighbours("", 1, 0.5)]) == 6
    # a node of its own for each role
    custom = [Neighbours("target", 1, 1.0), Neighbours("draft", 1, 0.5)]
    assert threads(12, 1.0, {"target": 1.0}, 2, custom) == 12
    assert threads(12, 0.5, {"draft": 2.0}, 2, custom) == 6
    assert threads(1, 0.5, {}, 1, pair) == 1


def test_the_first_line_of_an_error() -> None:
    assert first_line(RuntimeError("  \n what happened \n Traceback")) == "what happened"
    assert first_line(RuntimeError()) == "RuntimeError"
