"""Workers as Ray actors: the same servers as `python -m draft_service` and `target_service`, placed by resources.

Plain named actors, not Ray Serve: see docs/orchestrator.md. Ray is asked with a time limit always, and never retries.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import ray
import structlog
from ray.exceptions import GetTimeoutError, RayError

from draft_service.app import DraftConfig
from draftproof.errors import ConfigError
from orchestrator.supervisor import Place, PlacementError
from orchestrator.workers import Role
from target_service.app import TargetConfig

log = structlog.get_logger(__name__)

NAMESPACE = "draftproof"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Resources:
    """What one worker of a role takes of a node.

    Attributes:
        num_cpus: CPU cores, for Ray's bookkeeping.
        num_gpus: GPUs; fractions let small drafts share one.
        custom: custom resource that pins the role to nodes which offer it; empty: any node.
    """

    num_cpus: float = 0.0
    num_gpus: float = 0.0
    custom: str = ""


@dataclass(frozen=True, slots=True)
class RayConfig:
    """Settings of the placement.

    Attributes:
        resources: per role.
        target: configuration of target workers.
        draft: configuration of draft workers.
        address: of the cluster: host:port, "auto", "local" for one of this process's own, or "none" for no Ray at all.
        call_timeout: seconds a control call may take.
        bind: address that workers listen on; empty: their node's own.
        environment: variables of the workers.
    """

    resources: dict[Role, Resources]
    address: str = "local"
    target: TargetConfig = field(default_factory=TargetConfig)
    draft: DraftConfig = field(default_factory=DraftConfig)
    call_timeout: float = 10.0
    bind: str = "127.0.0.1"
    environment: dict[str, str] = field(default_factory=dict)


class WorkerActor:
    """A server inside a Ray actor. Its methods run on the actor's event loop, which owns the server's gRPC."""

    def __init__(self, config: TargetConfig | DraftConfig, bind: str) -> None:
        self._config = config
        self._bind = bind
        self._place: Place | None = None
        self._starting = asyncio.Lock()
        self._app: Any = None
        self._running: asyncio.Task[None] | None = None

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

    async def _serve(self) -> Place:
        from dataclasses import replace

        from draftproof.serving import logs

        logs.configure(fmt="json")
        host = self._bind or str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        config = replace(self._config, listen=replace(self._config.listen, host=host, port=0))
        if isinstance(config, TargetConfig):
            from target_service.app import load as load_target

            self._app = await asyncio.to_thread(load_target, config)
        else:
            from draft_service.app import load as load_draft

            self._app = await asyncio.to_thread(load_draft, config)
        await self._app.start()
        self._running = asyncio.create_task(self._app.run())
        self._running.add_done_callback(self._ended)
        return Place(
            address=str(self._app.server.address),
            node=ray.get_runtime_context().get_node_id(),
            pid=os.getpid(),
            metrics_address=f"{host}:{self._app.metrics_port}" if self._app.metrics_port else "",
        )

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A server whose loops have ended is no server: the supervisor replaces it."""
        if not task.cancelled() and task.exception() is not None:
            log.error("worker ended", problem=str(task.exception()))
            os._exit(1)


def connect(config: RayConfig) -> None:
    """Joins the cluster, or starts one on this machine that ends with this process.

    Raises:
        ConfigError: there is no cluster at the address.
    """
    common: dict[str, Any] = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": "error"}
    try:
        if config.address == "local":
            custom = {r.custom: 64.0 for r in config.resources.values() if r.custom}
            ray.init(
                address="local",
                include_dashboard=False,
                _node_ip_address="127.0.0.1",
                resources=custom or None,
                **common,
            )
        else:
            ray.init(address=config.address, **common)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigError("ray_address", f"no Ray cluster at {config.address}: {_first_line(error)}") from error


class RayPlacement:
    """Actors by name on the Ray cluster that this process is connected to."""

    def __init__(self, config: RayConfig) -> None:
        self._config = config

    async def room(self, role: Role) -> int:
        """Units of the role's custom resource, or of GPUs, in the cluster."""
        resources = self._config.resources[role]
        total = await self._within(asyncio.to_thread(ray.cluster_resources))
        if resources.custom:
            return int(total.get(resources.custom, 0))
        if resources.num_gpus:
            return int(total.get("GPU", 0) / resources.num_gpus)
        return 1

    async def start(self, name: str, role: Role) -> Place:
        """Creates the actor, or finds it, and waits until it serves."""
        config = self._config.target if role is Role.TARGET else self._config.draft
        resources = self._config.resources[role]
        try:
            actor = (
                ray.remote(WorkerActor)
                .options(
                    name=name,
                    namespace=NAMESPACE,
                    get_if_exists=True,
                    lifetime="detached",
                    num_cpus=resources.num_cpus,
                    num_gpus=resources.num_gpus,
                    resources={resources.custom: 1} if resources.custom else None,
                    max_restarts=0,
                    max_task_retries=0,
                    runtime_env={"env_vars": self._config.environment},
                )
                .remote(config, self._config.bind)
            )
            place: Place = await actor.start.remote()  # type: ignore[attr-defined]
        except RayError as error:
            raise PlacementError(_first_line(error)) from error
        return place

    async def drain(self, name: str, grace: float) -> None:
        """Drains the actor's server, then ends it."""
        actor = await self._find(name)
        if actor is None:
            return
        try:
            await asyncio.wait_for(_as_coroutine(actor.drain.remote()), grace + self._config.call_timeout)
        except (TimeoutError, RayError) as error:
            log.warning("drain failed", worker=name, problem=_first_line(error))
        await self.kill(name)

    async def kill(self, name: str) -> None:
        """Ends the actor's process."""
        actor = await self._find(name)
        if actor is not None:
            await self._within(asyncio.to_thread(ray.kill, actor))

    async def _find(self, name: str) -> Any:
        try:
            return await self._within(asyncio.to_thread(ray.get_actor, name, NAMESPACE))
        except (ValueError, RayError, GetTimeoutError):
            return None

    async def _within(self, call: Awaitable[T]) -> T:
        try:
            return await asyncio.wait_for(call, self._config.call_timeout)
        except TimeoutError:
            raise PlacementError(f"Ray did not answer within {self._config.call_timeout:g} s") from None


async def _as_coroutine(reference: Awaitable[T]) -> T:
    return await reference


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
