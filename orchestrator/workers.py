"""What the orchestrator knows of each worker, and how many requests it has sent it."""

from __future__ import annotations

import asyncio
import enum
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc.aio

from draftproof.v1 import fingerprint_pb2, orchestrator_pb2


class Role(enum.Enum):
    """What a worker does."""

    DRAFT = "draft"
    TARGET = "target"


class State(enum.Enum):
    """Where a worker stands."""

    STARTING = "starting"
    READY = "ready"
    SUSPECT = "suspect"
    DRAINING = "draining"


ROLES = {
    Role.DRAFT: orchestrator_pb2.WORKER_ROLE_DRAFT,
    Role.TARGET: orchestrator_pb2.WORKER_ROLE_TARGET,
}
_STATES = {
    State.STARTING: orchestrator_pb2.WORKER_STATE_STARTING,
    State.READY: orchestrator_pb2.WORKER_STATE_READY,
    State.SUSPECT: orchestrator_pb2.WORKER_STATE_SUSPECT,
    State.DRAINING: orchestrator_pb2.WORKER_STATE_DRAINING,
}


_LIVES = itertools.count(1)


@dataclass(eq=False, slots=True)
class Worker:
    """One draft or target server.

    Attributes:
        name: unique in the cluster.
        outstanding: requests of this orchestrator on it now.
        calls: the calls behind them.
        waiting: sessions in its own queue, as it last said.
        life: a number of its own, another one each time it becomes ready: what was held against it is then past.
        problem: the last one, for people.
    """

    name: str
    role: Role
    state: State = State.STARTING
    address: str = ""
    node: str = ""
    channel: grpc.aio.Channel | None = None
    fingerprint: fingerprint_pb2.Fingerprint = field(default_factory=fingerprint_pb2.Fingerprint)
    slots: int = 1
    max_context: int = 0
    max_gamma: int = 0
    default_gamma: int = 0
    chat_template: bool = False
    outstanding: int = 0
    waiting: int = 0
    restarts: int = 0
    metrics_address: str = ""
    pid: int = 0
    problem: str = ""
    calls: set[Any] = field(default_factory=set)
    life: int = field(default_factory=lambda: next(_LIVES))

    @property
    def load(self) -> float:
        """Outstanding work per slot, sessions that others keep waiting there included."""
        slots = max(1, self.slots)
        others = max(0, self.waiting - max(0, self.outstanding - slots))
        return (self.outstanding + others) / slots

    @property
    def weights(self) -> bytes:
        """Tells models apart, drafters without weights by their name."""
        return self.fingerprint.weights_sha256 or self.fingerprint.model.encode()

    def turn(self, state: State) -> None:
        """Changes the state; a worker that becomes ready, or is another process now, begins a new life."""
        if state is State.READY:
            self.life = next(_LIVES)
            self.problem = ""
        self.state = state

    def abandon(self) -> None:
        """Ends the calls that still wait for it: nothing will come of them."""
        for call in list(self.calls):
            call.cancel()

    def describe(self) -> orchestrator_pb2.Worker:
        """The wire form."""
        return orchestrator_pb2.Worker(
            name=self.name,
            role=ROLES[self.role],
            state=_STATES[self.state],
            address=self.address,
            node=self.node,
            sessions=self.outstanding,
            slots=self.slots,
            waiting=self.waiting,
            fingerprint=self.fingerprint,
            restarts=self.restarts,
            metrics_address=self.metrics_address,
            pid=self.pid,
            problem=self.problem,
        )


class Fleet:
    """All workers by name.

    Attributes:
        target_weights: those that new requests must meet, once there has been an update; empty: any.
    """

    def __init__(self) -> None:
        self._workers: dict[str, Worker] = {}
        self._change = asyncio.Event()
        self._successors: dict[bytes, bytes] = {}
        self.target_weights = b""

    def __iter__(self) -> Iterator[Worker]:
        return iter(sorted(self._workers.values(), key=lambda w: (w.role.value, w.name)))

    def get(self, name: str) -> Worker | None:
        """The worker of that name."""
        return self._workers.get(name)

    def add(self, worker: Worker) -> None:
        """Adds or replaces a worker."""
        self._workers[worker.name] = worker

    def remove(self, worker: Worker) -> None:
        """Forgets a worker; a successor of the same name stays."""
        if self._workers.get(worker.name) is worker:
            del self._workers[worker.name]

    def renew(self, old: Iterable[bytes], new: bytes, *, restart: bool) -> None:
        """Takes note of an update of the targets.

        Args:
            old: weights that they had.
            new: weights that they have.
            restart: whether requests that met the old ones go on under the new.
        """
        self.target_weights = new
        self._successors.pop(new, None)
        if restart:
            self._successors.update({weights: new for weights in old if weights != new})

    def current(self, weights: bytes) -> bytes:
        """The weights under which a request that met these goes on."""
        while weights in self._successors:
            weights = self._successors[weights]
        return weights

    def notify(self) -> None:
        """Wakes those who wait for a change: a worker came, went, or changed its state."""
        self._change.set()
        self._change = asyncio.Event()

    async def changed(self) -> None:
        """Returns at the next change."""
        await self._change.wait()

    def ready(self, role: Role) -> list[Worker]:
        """Workers that take requests."""
        return [w for w in self if w.role is role and w.state is State.READY]
