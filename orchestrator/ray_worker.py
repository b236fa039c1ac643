"""A server inside a Ray actor."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
import structlog

from draftproof.errors import DraftproofError
from draftproof.rpc.security import Address
from draftproof.serving import logs
from draftproof.serving.options import ListenConfig
from orchestrator.recipes import Recipe, Server
from orchestrator.supervisor import Place

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Who else may be on a worker's node, to share its cores.

    Attributes:
        custom: custom resource of a role; empty: none.
        count: workers of the role where it has no custom resource.
        weight: of one worker, as in `Recipe`.
    """

    custom: str
    count: int
    weight: float


def threads(cores: int, weight: float, node: Mapping[str, float], nodes: int, roles: Sequence[Neighbours]) -> int:
    """CPU threads of a worker: its share of the node's cores among those of its weight or more, at least one.

    Lighter ones don't count: a stream's draft waits while its target runs, so the target had better take every core.

    Args:
        cores: of the node.
        weight: the worker's own.
        node: resources that the node offers.
        nodes: how many there are.
        roles: the kinds of workers there are.
    """
    total = 0.0
    for role in roles:
        here = node.get(role.custom, 0.0) if role.custom else -(-role.count // max(1, nodes))
        total += role.weight * here if role.weight >= weight else 0.0
    return max(1, int(cores * min(1.0, weight / max(total, weight)))) if weight else 1


class WorkerActor:
    """The same server as `python -m draft_service` or `target_service`; its methods run on the server's event loop."""

    def __init__(
        self, recipe: Recipe, listen: ListenConfig, version: str, roles: Sequence[Neighbours], log_level: str
    ) -> None:
        self._recipe = recipe
        self._version = version
        self._listen = listen
        self._roles = roles
        self._log_level = log_level
        self._place: Place | None = None
        self._starting = asyncio.Lock()
        self._app: Server | None = None
        self._running: asyncio.Task[None] | None = None

    async def is_made_by(
        self, recipe: Recipe, listen: ListenConfig, version: str, roles: Sequence[Neighbours], log_level: str
    ) -> bool:
        """Whether a worker made of these would be the same; who its neighbours are makes no difference."""
        return (recipe, listen, version) == (self._recipe, self._listen, self._version)

    async def start(self) -> Place:
        """Loads the model and serves; called again, it says where."""
        async with self._starting:
            if self._place is None:
                self._place = await self._serve()
        return self._place

    async def drain(self) -> None:
        """NOT_SERVING, the grace period, then the server ends."""
        if self._app is not None:
            await self._app.drain()

    async def wait(self) -> None:
        """Never returns: Ray tells whoever waits here when the process dies."""
        await asyncio.Event().wait()

    async def _serve(self) -> Place:
        logs.configure(self._log_level, "json")
        host = self._listen.host or str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        await asyncio.to_thread(self._share_cores)
        try:
            app = await asyncio.to_thread(self._recipe.cook, replace(self._listen, host=host, port=0))
            await app.start()
        except DraftproofError as error:
            raise RuntimeError(error.message) from None  # which any process can unpickle
        assert app.server is not None
        self._app = app
        self._running = asyncio.create_task(app.run())
        self._running.add_done_callback(_ended)
        return Place(
            address=str(app.server.address),
            node=ray.get_runtime_context().get_node_id(),
            pid=os.getpid(),
            metrics_address=str(Address(host, app.metrics_port)) if app.metrics_port else "",
        )

    def _share_cores(self) -> None:
        """Ray gives workers without CPUs of their own one OpenMP thread; read when torch is loaded, which is later."""
        here: str = ray.get_runtime_context().get_node_id()
        alive: list[dict[str, Any]] = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
        node: dict[str, float] = next((node["Resources"] for node in alive if node["NodeID"] == here), {})
        cores = len(os.sched_getaffinity(0))
        count = threads(cores, self._recipe.weight, node, len(alive), self._roles)
        os.environ["OMP_NUM_THREADS"] = str(count)
        log.info("cores", threads=count, of=cores)


def _ended(task: asyncio.Task[None]) -> None:
    """A server whose loops have ended is no server: the supervisor replaces it."""
    if not task.cancelled() and task.exception() is not None:
        log.error("worker ended", problem=str(task.exception()))
        os._exit(1)
