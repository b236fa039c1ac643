"""Keeps the wanted workers running: places them, watches them, replaces those that are lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import grpc.aio
import structlog

from draftproof.errors import ConfigError
from orchestrator.probe import ProbeConfig, watch
from orchestrator.workers import Fleet, Role, State, Worker

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a worker came up.

    Attributes:
        address: host:port of its server.
        node: the Ray node.
        pid: its process.
        metrics_address: host:port of its /metrics, empty without one.
    """

    address: str
    node: str
    pid: int
    metrics_address: str


class Placement(Protocol):
    """Starts and ends workers somewhere. No call takes for ever."""

    async def room(self, role: Role) -> int:
        """How many workers of a role the cluster has room for, those that run included."""
        ...

    async def start(self, name: str, role: Role) -> Place:
        """Starts a worker, or finds the one that runs under this name.

        Raises:
            PlacementError: it could not be started in time.
        """
        ...

    async def drain(self, name: str, grace: float) -> None:
        """Lets a worker finish what it has, then ends it."""
        ...

    async def kill(self, name: str) -> None:
        """Ends a worker at once. Unknown names are no error."""
        ...


class PlacementError(Exception):
    """A worker could not be started."""


def wanted(field: str, text: str) -> int | None:
    """A number of workers, or None for "auto".

    Raises:
        ConfigError: neither.
    """
    if text == "auto":
        return None
    if not text.isdecimal():
        raise ConfigError(field, f"must be a number or auto, got {text!r}")
    return int(text)


Dial = Callable[[str], grpc.aio.Channel]


@dataclass(frozen=True, slots=True)
class SupervisorConfig:
    """Settings of the supervisor.

    Attributes:
        wanted: workers per role; None: as many as there is room for.
        attached: addresses of workers that run on their own, per role.
        interval: seconds between looks at the cluster.
        backoff: seconds before a worker that failed is started again; doubles up to `backoff_max`.
        start_timeout: seconds a worker has to become ready.
    """

    wanted: dict[Role, int | None]
    attached: dict[Role, tuple[str, ...]]
    interval: float = 1.0
    backoff: float = 0.5
    backoff_max: float = 30.0
    start_timeout: float = 300.0


class Supervisor:
    """One loop per worker name, and one that looks for room."""

    def __init__(
        self,
        fleet: Fleet,
        placement: Placement | None,
        dial: Dial,
        config: SupervisorConfig,
        probes: ProbeConfig,
        on_restart: Callable[[Role], None] = lambda role: None,
    ) -> None:
        self._on_restart = on_restart
        self._fleet = fleet
        self._placement = placement
        self._dial = dial
        self._config = config
        self._probes = probes
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._leaving: set[str] = set()

    async def run(self) -> None:
        """Runs until it is cancelled."""
        for role, addresses in self._config.attached.items():
            for address in addresses:
                name = f"{role.value}@{address}"
                self._keepers[name] = asyncio.create_task(self._attend(name, role, address))
        try:
            while True:
                if self._placement is not None:
                    for role in Role:
                        try:
                            await self._match(self._placement, role)
                        except PlacementError as error:
                            log.warning("no word from the cluster", role=role.value, problem=str(error))
                await asyncio.sleep(self._config.interval)
        finally:
            for keeper in self._keepers.values():
                keeper.cancel()
            await asyncio.gather(*self._keepers.values(), return_exceptions=True)

    async def replace(self, worker: Worker, grace: float) -> None:
        """Drains a worker and starts its successor: for upgrades."""
        worker.state = State.DRAINING
        self._fleet.notify()
        if self._placement is not None:
            await self._placement.drain(worker.name, grace)

    async def _match(self, placement: Placement, role: Role) -> None:
        wanted = self._config.wanted.get(role, 0)
        if wanted is None:
            wanted = await placement.room(role)
        for index in range(wanted):
            name = f"{role.value}-{index}"
            keeper = self._keepers.get(name)
            if keeper is None or keeper.done():
                self._keepers[name] = asyncio.create_task(self._keep(placement, name, role))
        # a node that left took its room along: its workers end by themselves and get no successor
        for name, keeper in list(self._keepers.items()):
            if name.startswith(f"{role.value}-") and int(name.rsplit("-", 1)[1]) >= wanted:
                keeper.cancel()
                del self._keepers[name]

    async def _keep(self, placement: Placement, name: str, role: Role) -> None:
        """Starts a worker and its successors."""
        delay, restarts = self._config.backoff, 0
        while True:
            worker = Worker(name, role, restarts=restarts)
            self._fleet.add(worker)
            try:
                async with asyncio.timeout(self._config.start_timeout):
                    place = await placement.start(name, role)
                worker.address, worker.node, worker.pid = place.address, place.node, place.pid
                worker.metrics_address = place.metrics_address
                delay = self._config.backoff
                await self._watch(worker)
            except (PlacementError, TimeoutError) as error:
                worker.problem = str(error) or "did not start in time"
                log.warning("worker failed to start", worker=name, problem=worker.problem)
            finally:
                self._fleet.remove(worker)
                self._fleet.notify()
                await asyncio.shield(placement.kill(name))
            await asyncio.sleep(delay)
            delay = min(2 * delay, self._config.backoff_max)
            restarts += 1
            self._on_restart(role)

    async def _attend(self, name: str, role: Role, address: str) -> None:
        """Watches a worker that runs on its own; it may come and go."""
        while True:
            worker = Worker(name, role, address=address)
            self._fleet.add(worker)
            await self._watch(worker)

    async def _watch(self, worker: Worker) -> None:
        worker.channel = self._dial(worker.address)
        try:
            await watch(worker, self._fleet, self._probes)
        finally:
            if worker.state is not State.DRAINING:
                worker.state = State.SUSPECT
            await worker.channel.close(grace=0.0)
