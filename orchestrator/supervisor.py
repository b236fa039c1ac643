"""Keeps the wanted workers running: places them, watches them, replaces those that are lost."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

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
        node: where, in the placement's own terms.
        pid: its process.
        metrics_address: host:port of its /metrics, empty without one.
    """

    address: str
    node: str
    pid: int
    metrics_address: str


class Placement(Protocol):
    """Starts and ends workers somewhere. No call takes for ever, `start` and `ended` aside, which can be cancelled."""

    @property
    def outlives(self) -> bool:
        """Whether workers go on without this process, to be found again by the next one."""
        ...

    async def room(self, role: Role) -> int:
        """How many workers of a role the cluster has room for, those that run included.

        Raises:
            PlacementError: no answer.
        """
        ...

    async def existing(self) -> list[str]:
        """Names of the workers that run, an earlier process's too.

        Raises:
            PlacementError: no answer.
        """
        ...

    async def start(self, name: str, role: Role) -> Place:
        """Starts a worker, or finds the one that runs under this name as it should.

        Raises:
            PlacementError: it could not be started.
        """
        ...

    async def ended(self, name: str) -> str:
        """Returns when the worker's process is dead, and why."""
        ...

    async def drain(self, name: str) -> None:
        """Lets a worker finish what it has within the grace period, then ends it."""
        ...

    async def kill(self, name: str) -> None:
        """Ends a worker at once. Unknown names are no error.

        Raises:
            PlacementError: no answer.
        """
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
    """One loop per worker, and one that compares them with what is wanted and what there is room for."""

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
        self._keepers: dict[Role, dict[str, asyncio.Task[None]]] = {role: {} for role in Role}
        self._wanted = dict.fromkeys(Role, 0)
        self._leaving: set[asyncio.Task[None]] = set()
        self._surplus: set[str] = set()
        self._closing = False

    async def check(self) -> None:
        """Looks at the attached addresses.

        Raises:
            ConfigError: one is malformed, or may not be dialled (plaintext beyond loopback).
        """
        for addresses in self._config.attached.values():
            for address in addresses:
                await self._dial(address).close()

    async def run(self) -> None:
        """Runs until it is cancelled. Workers that outlive this process are left to the next one."""
        attending = [
            asyncio.create_task(self._attend(f"{role.value}@{address}", role, address))
            for role, addresses in self._config.attached.items()
            for address in addresses
        ]
        try:
            while True:
                if self._placement is not None:
                    try:
                        await self._match(self._placement)
                    except PlacementError as error:
                        log.warning("no word from the cluster", problem=str(error))
                await asyncio.sleep(self._config.interval)
        finally:
            self._closing = True
            tasks = [*attending, *self._leaving, *(task for kept in self._keepers.values() for task in kept.values())]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def replace(self, name: str) -> None:
        """Drains a worker; its successor starts once it has ended.

        Raises:
            LookupError: this process places no worker of that name.
        """
        worker = self._fleet.get(name)
        if worker is None or self._placement is None or name not in self._keepers[worker.role]:
            raise LookupError(name)
        if worker.state is not State.DRAINING:
            self._leave(self._placement, worker)

    def _leave(self, placement: Placement, worker: Worker) -> None:
        worker.turn(State.DRAINING)
        self._fleet.notify()
        self._spawn(placement.drain(worker.name))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _match(self, placement: Placement) -> None:
        running = await placement.existing()
        for role in Role:
            wanted = self._config.wanted.get(role, 0)
            self._wanted[role] = await placement.room(role) if wanted is None else wanted
            kept = self._keepers[role]
            for name in [name for name, keeper in kept.items() if keeper.done()]:
                del kept[name]
            # those that an earlier process has left, and no more of them than are wanted now
            left = [name for name in running if name.startswith(f"{role.value}-") and name not in kept]
            fresh = (f"{role.value}-{index}" for index in itertools.count())
            names = itertools.chain(sorted(left), (name for name in fresh if name not in left))
            while len(kept) < self._wanted[role]:
                name = next(name for name in names if name not in kept)
                kept[name] = asyncio.create_task(self._keep(placement, name, role))
            for name in left:
                if name not in kept and name not in self._surplus:
                    self._surplus.add(name)
                    log.info("one worker too many", worker=name)
                    self._spawn(placement.drain(name))
            self._shrink(placement, role)

    def _shrink(self, placement: Placement, role: Role) -> None:
        """Ends workers for which there is no room: first those that do not serve anyway, as their node has left."""
        kept = self._keepers[role]
        for name, keeper in list(kept.items()):
            worker = self._fleet.get(name)
            if len(kept) > self._wanted[role] and (worker is None or worker.state is State.STARTING):
                keeper.cancel()
                del kept[name]

    async def _keep(self, placement: Placement, name: str, role: Role) -> None:
        """Starts a worker and its successors, as long as there is room for it."""
        delay, restarts = self._config.backoff, 0
        while True:
            worker = Worker(name, role, restarts=restarts)
            self._fleet.add(worker)
            try:
                async with asyncio.timeout(self._config.start_timeout):
                    place = await placement.start(name, role)
                worker.address, worker.node, worker.pid = place.address, place.node, place.pid
                worker.metrics_address = place.metrics_address
                log.info("worker started", worker=name, address=place.address, node=place.node[:8], pid=place.pid)
                delay = self._config.backoff
                await self._watch(worker, placement)
            except (PlacementError, ConfigError, TimeoutError) as error:
                worker.problem = str(error) or f"did not start within {self._config.start_timeout:g} s"
                log.warning("worker failed to start", worker=name, problem=worker.problem)
            finally:
                self._fleet.remove(worker)
                self._fleet.notify()
                if not (self._closing and placement.outlives):
                    with suppress(PlacementError):
                        await asyncio.shield(placement.kill(name))
            if len(self._keepers[role]) > self._wanted[role]:
                return
            self._fleet.add(worker)  # still to be seen, with its problem, until its successor starts
            worker.state = State.STARTING
            try:
                await asyncio.sleep(delay)
            finally:
                self._fleet.remove(worker)
            delay = min(2 * delay, self._config.backoff_max)
            restarts += 1
            self._on_restart(role)

    async def _attend(self, name: str, role: Role, address: str) -> None:
        """Watches a worker that runs on its own; it may come and go."""
        while True:
            worker = Worker(name, role, address=address)
            self._fleet.add(worker)
            await self._watch(worker)

    async def _watch(self, worker: Worker, placement: Placement | None = None) -> None:
        """Returns when the worker is lost: silent for too long, or known to be dead."""
        worker.channel = self._dial(worker.address)
        tasks = [asyncio.create_task(watch(worker, self._fleet, self._probes))]
        if placement is not None:
            tasks.append(asyncio.create_task(self._mourn(worker, placement)))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if worker.state is not State.DRAINING:
                worker.state = State.SUSPECT
            worker.abandon()
            await worker.channel.close(grace=0.0)

    async def _mourn(self, worker: Worker, placement: Placement) -> None:
        worker.problem = await placement.ended(worker.name)
        if worker.state is not State.DRAINING:
            log.warning("worker ended", worker=worker.name, problem=worker.problem)
