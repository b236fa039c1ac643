"""How many workers run, which of them go when there is room for fewer, and what a successor waits for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import grpc.aio
import pytest

from draftproof.errors import ConfigError
from draftproof.rpc.channel import aio_channel
from orchestrator.probe import ProbeConfig
from orchestrator.supervisor import Place, PlacementError, Supervisor, SupervisorConfig, wanted
from orchestrator.workers import Fleet, Role, State

TICK = 0.01


class Machines:
    """A placement in memory: names of living workers, and what was asked."""

    def __init__(self, room: int = 0, outlives: bool = True) -> None:
        self.room_now = room
        self.outlives = outlives
        self.alive: dict[str, asyncio.Event] = {}
        self.pending: set[str] = set()
        self.started: list[str] = []
        self.drained: list[str] = []
        self.killed: list[str] = []
        self.failing = ""
        self.silent = False

    async def room(self, role: Role) -> int:
        return self.room_now if role is Role.TARGET else 0

    async def existing(self) -> list[str]:
        if self.silent:
            raise PlacementError("Ray does not answer")
        return list(self.alive)

    async def start(self, name: str, role: Role) -> Place:
        self.started.append(name)
        if self.failing:
            raise PlacementError(self.failing)
        while name in self.pending:  # noqa: ASYNC110
            await asyncio.sleep(TICK)
        self.alive.setdefault(name, asyncio.Event())
        return Place(address="127.0.0.1:9", node="here", pid=len(self.started), metrics_address="")

    async def ended(self, name: str) -> str:
        await self.alive[name].wait()
        return "killed"

    async def drain(self, name: str) -> None:
        self.drained.append(name)
        await self.kill(name)

    async def kill(self, name: str) -> None:
        self.killed.append(name)
        if name in self.alive:
            self.alive.pop(name).set()


class Watched:
    """A supervisor over machines."""

    def __init__(self, machines: Machines, targets: int | None) -> None:
        self.fleet = Fleet()
        self.machines = machines
        self.restarted: list[Role] = []
        self._channels: list[grpc.aio.Channel] = []
        self.supervisor = Supervisor(
            self.fleet,
            machines,
            self._dial,
            SupervisorConfig(wanted={Role.TARGET: targets}, attached={}, interval=TICK, backoff=TICK, backoff_max=TICK),
            ProbeConfig(interval=60.0, timeout=0.05, lost_after=60.0),
            self.restarted.append,
        )
        self.task = asyncio.create_task(self.supervisor.run())

    def _dial(self, address: str) -> grpc.aio.Channel:
        return aio_channel(address)

    def ready(self) -> list[str]:
        """Names of workers that have been placed; here they never answer a probe."""
        return [worker.name for worker in self.fleet if worker.pid]

    def serve(self) -> None:
        """As if all had answered."""
        for worker in self.fleet:
            if worker.pid:
                worker.turn(State.READY)

    async def until(self, true: Callable[[], object]) -> None:
        async with asyncio.timeout(10):
            while not true():  # noqa: ASYNC110
                await asyncio.sleep(TICK)

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@pytest.fixture
async def watch() -> AsyncIterator[Callable[..., Watched]]:
    made: list[Watched] = []

    def build(machines: Machines, targets: int | None = None) -> Watched:
        made.append(Watched(machines, targets))
        return made[-1]

    yield build
    for watched in made:
        await watched.stop()


Watch = Callable[..., Watched]


async def test_room_is_filled_and_followed(watch: Watch) -> None:
    machines = Machines(room=2)
    watched = watch(machines)
    await watched.until(lambda: watched.ready() == ["target-0", "target-1"])
    machines.room_now = 3
    await watched.until(lambda: watched.ready() == ["target-0", "target-1", "target-2"])
    assert machines.started == ["target-0", "target-1", "target-2"]


async def test_when_a_node_leaves_those_that_serve_elsewhere_stay(watch: Watch) -> None:
    machines = Machines(room=2)
    watched = watch(machines)
    await watched.until(lambda: len(watched.ready()) == 2)
    watched.serve()
    # a node is lost, and Ray has no room for a successor
    machines.pending.add("target-1")
    machines.alive.pop("target-1").set()
    await watched.until(lambda: machines.started.count("target-1") == 2)
    machines.room_now = 1
    await watched.until(lambda: [w.name for w in watched.fleet] == ["target-0"])
    await asyncio.sleep(10 * TICK)
    assert "target-0" in machines.alive
    assert "target-0" not in machines.killed


async def test_a_dead_worker_gets_a_successor_of_its_name(watch: Watch) -> None:
    machines = Machines()
    watched = watch(machines, 1)
    await watched.until(lambda: watched.ready() == ["target-0"])
    machines.alive.pop("target-0").set()
    await watched.until(lambda: machines.started == ["target-0"] * 2 and watched.ready())
    assert watched.restarted == [Role.TARGET]
    (worker,) = watched.fleet
    assert worker.restarts == 1


async def test_workers_of_an_earlier_process_are_taken_over_and_those_too_many_drained(watch: Watch) -> None:
    machines = Machines()
    machines.alive = {name: asyncio.Event() for name in ("target-3", "target-5", "target-7", "somebody-else")}
    watched = watch(machines, 2)
    await watched.until(lambda: watched.ready() == ["target-3", "target-5"])
    await watched.until(lambda: machines.drained == ["target-7"])
    assert set(machines.alive) == {"target-3", "target-5", "somebody-else"}


@pytest.mark.parametrize("outlives", [True, False])
async def test_at_the_end_workers_that_outlive_this_process_are_left_alone(watch: Watch, outlives: bool) -> None:
    machines = Machines(outlives=outlives)
    watched = watch(machines, 1)
    await watched.until(watched.ready)
    await watched.stop()
    assert list(machines.alive) == (["target-0"] if outlives else [])


async def test_a_worker_is_replaced_by_name(watch: Watch) -> None:
    machines = Machines()
    watched = watch(machines, 1)
    await watched.until(watched.ready)
    await watched.supervisor.replace("target-0")
    await watched.until(lambda: machines.started == ["target-0"] * 2)
    assert machines.drained == ["target-0"]
    with pytest.raises(LookupError):
        await watched.supervisor.replace("target-1")


async def test_a_failed_start_is_seen_and_tried_again(watch: Watch) -> None:
    machines = Machines()
    machines.failing = "no such model"
    watched = watch(machines, 1)
    await watched.until(lambda: [w.problem for w in watched.fleet] == ["no such model"])
    machines.failing = ""
    await watched.until(watched.ready)


async def test_that_the_cluster_does_not_answer_ends_nobody(watch: Watch) -> None:
    machines = Machines()
    watched = watch(machines, 1)
    await watched.until(watched.ready)
    machines.silent = True
    await asyncio.sleep(10 * TICK)
    assert watched.ready() == ["target-0"]
    assert machines.killed == []


def test_a_number_of_workers() -> None:
    assert wanted("targets", "3") == 3
    assert wanted("targets", "auto") is None
    with pytest.raises(ConfigError):
        wanted("targets", "many")


@pytest.mark.parametrize("address", ["192.0.2.1:7600", "no-port"])
async def test_an_attached_address_that_may_not_be_dialled(address: str) -> None:
    supervisor = Supervisor(
        Fleet(),
        None,
        aio_channel,
        SupervisorConfig(wanted={}, attached={Role.TARGET: ("127.0.0.1:7600", address)}),
        ProbeConfig(),
    )
    with pytest.raises(ConfigError, match=address):
        await supervisor.check()
