"""A Ray cluster of several nodes on this machine, and orchestrators over it."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import structlog

from draftproof import AsyncClient
from draftproof.serving.options import ListenConfig
from orchestrator.app import OrchestratorApp, OrchestratorConfig
from orchestrator.probe import ProbeConfig
from orchestrator.ray_placement import NAMESPACE, Crew, RayConfig, RayPlacement, Resources, connect
from orchestrator.recipes import Recipe
from orchestrator.relay import RelayConfig
from orchestrator.supervisor import SupervisorConfig
from orchestrator.workers import Role, State, Worker

ROOT = Path(__file__).parents[3]
WORKERS = "tests.integration.placement.workers"
STORE = 80_000_000
PATIENCE = 60.0


def node(**resources: float) -> dict[str, Any]:
    """Arguments of a Ray node that offers custom resources alone."""
    return {"num_cpus": 0, "object_store_memory": STORE, "resources": resources, "include_dashboard": False}


@pytest.fixture(scope="module")
def machines() -> Iterator[Any]:
    """A head node that offers nothing; this process is connected to it."""
    import ray
    from ray.cluster_utils import Cluster

    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    cluster = Cluster(initialize_head=True, head_node_args=node())
    connect(config(cluster))
    yield cluster
    ray.shutdown()
    cluster.shutdown()
    del os.environ["RAY_AUTH_TOKEN"]


def config(cluster: Any, slots: int = 4, target: str = "build_target") -> RayConfig:
    """As many targets and drafts as there is room for."""
    arguments = {"slots": slots} if target == "build_target" else {}
    return RayConfig(
        crews={
            Role.TARGET: Crew(
                recipe=Recipe(build=f"{WORKERS}:{target}", arguments=arguments),
                resources=Resources(custom="target"),
                count=None,
            ),
            Role.DRAFT: Crew(
                recipe=Recipe(build=f"{WORKERS}:build_draft", weight=0.5),
                resources=Resources(custom="draft"),
                count=None,
            ),
        },
        listen=ListenConfig(grace=5.0, metrics_port=0),
        address=cluster.address,
        environment={"PYTHONPATH": str(ROOT)},
    )


@dataclass
class Running:
    """An orchestrator over the cluster."""

    app: OrchestratorApp
    task: asyncio.Task[None]
    clients: list[AsyncClient] = field(default_factory=list)

    @property
    def address(self) -> str:
        assert self.app.server is not None
        return str(self.app.server.address)

    def client(self) -> AsyncClient:
        client = AsyncClient(self.address, timeout=PATIENCE)
        self.clients.append(client)
        return client

    def ready(self, role: Role) -> list[Worker]:
        return self.app.fleet.ready(role)

    async def until(self, true: Callable[[], bool], patience: float = PATIENCE) -> None:
        """Waits for a condition."""
        try:
            async with asyncio.timeout(patience):
                while not true():  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        except TimeoutError:
            fleet = [(w.name, w.state.value, w.pid, w.problem) for w in self.app.fleet]
            raise AssertionError(f"not within {patience:g} s; the fleet: {fleet}") from None

    async def until_ready(self, targets: int, drafts: int) -> None:
        await self.until(lambda: len(self.ready(Role.TARGET)) == targets and len(self.ready(Role.DRAFT)) == drafts)

    def pids(self) -> dict[str, int]:
        return {worker.name: worker.pid for worker in self.app.fleet if worker.state is State.READY}

    async def stop(self) -> None:
        for client in self.clients:
            await client.aclose()
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task
        await self.app.close()


Orchestrate = Callable[..., Awaitable[Running]]


@pytest.fixture
async def orchestrate(machines: Any) -> AsyncIterator[Orchestrate]:
    """Starts orchestrators; they and all workers end with the test. Deaths are known from Ray alone, not by silence."""
    import ray

    started: list[Running] = []

    async def start(**changes: Any) -> Running:
        ray_config = config(machines, **changes)
        app = OrchestratorApp(
            OrchestratorConfig(
                supervisor=SupervisorConfig(
                    wanted={Role.TARGET: None, Role.DRAFT: None}, attached={}, interval=0.3, backoff=0.1
                ),
                relay=RelayConfig(no_worker=PATIENCE, same_draft=PATIENCE),
                probes=ProbeConfig(interval=0.1, timeout=5.0, lost_after=20.0),
            ),
            RayPlacement(replace(ray_config, call_timeout=20.0)),
        )
        await app.start()
        running = Running(app, asyncio.create_task(app.run()))
        started.append(running)
        return running

    with structlog.testing.capture_logs():
        yield start
        for running in started:
            await running.stop()
    for name in ray.util.list_named_actors():
        ray.kill(ray.get_actor(name, NAMESPACE))
