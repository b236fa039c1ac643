"""Workers as Ray actors, placed by resources.

Plain named actors, not Ray Serve: see docs/orchestrator.md. Ray is asked off the event loop and with a time limit
always, and never retries.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import ray
import structlog
from ray.exceptions import ActorDiedError, RayError

from draftproof.errors import ConfigError
from draftproof.serving.options import ListenConfig
from draftproof.version import VERSION
from orchestrator.ray_worker import Neighbours, WorkerActor
from orchestrator.recipes import Recipe
from orchestrator.supervisor import Place, PlacementError
from orchestrator.workers import Role

log = structlog.get_logger(__name__)

NAMESPACE = "draftproof"
LOCAL = "local"
NO_RAY = "none"
_CONNECT_SECONDS = 5.0
_AGAIN_SECONDS = 0.5
_MOST_STUCK = 16
# The object store is not used, and Ray's smallest is 75 MB; without CPUs Ray starts no idle processes in advance.
_LOCAL_STORE = 80_000_000
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Resources:
    """What one worker of a role takes of a node.

    Attributes:
        num_gpus: GPUs: a whole number, or a fraction of one that it shares.
        custom: custom resource of which it takes one unit, so that it runs on nodes that offer it; empty: any node.
    """

    num_gpus: float = 0.0
    custom: str = ""

    def __post_init__(self) -> None:
        if self.num_gpus > 1 and self.num_gpus % 1:
            raise ConfigError("gpus", f"must be a whole number above 1, got {self.num_gpus:g}")

    def fit(self, node: Mapping[str, float]) -> int:
        """How many workers a node with these resources holds; one where it is asked for nothing."""
        fits = []
        if self.custom:
            fits.append(int(node.get(self.custom, 0)))
        if self.num_gpus:
            gpus = int(node.get("GPU", 0))
            fits.append(gpus // int(self.num_gpus) if self.num_gpus >= 1 else gpus * int(1 / self.num_gpus))
        return min(fits, default=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """Workers of one role.

    Attributes:
        recipe: what they run.
        resources: what each takes.
        count: how many are wanted; None: as many as fit.
    """

    recipe: Recipe
    resources: Resources = field(default_factory=Resources)
    count: int | None = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RayConfig:
    """Settings of the placement.

    Attributes:
        crews: per role.
        listen: how workers listen; an empty host is their node's own address. The port is a free one always.
        address: of the cluster: host:port, "auto", "local" for one of this process's own, or "none" for no Ray at all.
        call_timeout: seconds a control call may take.
        log_level: of the workers.
        environment: variables of the workers.
    """

    crews: Mapping[Role, Crew]
    listen: ListenConfig = field(default_factory=ListenConfig)
    address: str = LOCAL
    call_timeout: float = 10.0
    log_level: str = "info"
    environment: Mapping[str, str] = field(default_factory=dict)


def connect(config: RayConfig) -> None:
    """Joins the cluster, or starts one on this machine that ends with this process.

    Raises:
        ConfigError: there is no cluster at the address, or it takes another token.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    common: dict[str, Any] = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": "error"}
    try:
        if config.address == LOCAL:
            if "RAY_AUTH_TOKEN_PATH" not in os.environ:
                # of this cluster alone; Ray would write one into the user's home
                os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
            offered: dict[str, float] = {
                crew.resources.custom: float(1 if crew.count is None else crew.count)
                for crew in config.crews.values()
                if crew.resources.custom
            }
            ray.init(
                address=LOCAL,
                include_dashboard=False,
                num_cpus=0,
                object_store_memory=_LOCAL_STORE,
                resources=offered or None,
                **common,
            )
        else:
            _reach(config.address)
            ray.init(address=config.address, **common)
    except (ConnectionError, RuntimeError, ValueError, RayError) as error:
        raise ConfigError("ray_address", f"no Ray cluster at {config.address}: {first_line(error)}") from error


def _reach(address: str) -> None:
    """Says within seconds that nobody listens; Ray takes two minutes for it."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError("ray_address", f"must be host:port, auto, local or none, got {address!r}")
    socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()


class RayPlacement:
    """Actors by name on the Ray cluster that this process is connected to."""

    def __init__(self, config: RayConfig) -> None:
        self._config = config
        self._stuck = 0
        self._roles = [
            Neighbours(crew.resources.custom, 1 if crew.count is None else crew.count, crew.recipe.weight)
            for crew in config.crews.values()
        ]

    @property
    def outlives(self) -> bool:
        """Whether workers go on without this process."""
        return self._config.address != LOCAL

    async def room(self, role: Role) -> int:
        """Units of the role's custom resource, or shares of GPUs, on the nodes that are alive; else one per node."""
        resources = self._config.crews[role].resources
        nodes: list[dict[str, Any]] = await self._ask(ray.nodes)
        return sum(resources.fit(node["Resources"]) for node in nodes if node["Alive"])

    async def existing(self) -> list[str]:
        """Names of the workers that run, an earlier process's too."""
        names: list[str] = await self._ask(ray.util.list_named_actors)
        return names

    async def start(self, name: str, role: Role) -> Place:
        """Creates the actor, or finds it, and waits until it serves.

        Raises:
            PlacementError: it could not be created, or its model could not be loaded.
        """
        crew = self._config.crews[role]
        resources = crew.resources
        environment = dict(self._config.environment)
        kind = ray.remote(WorkerActor).options(
            name=name,
            namespace=NAMESPACE,
            get_if_exists=True,
            lifetime="detached",
            num_cpus=0,
            num_gpus=resources.num_gpus,
            resources={resources.custom: 1} if resources.custom else None,
            # the loss of one node should take as few workers as may be
            scheduling_strategy="SPREAD",
            max_restarts=0,
            max_task_retries=0,
            runtime_env={"env_vars": environment} if environment else None,
        )
        arguments = (crew.recipe, self._config.listen, VERSION, self._roles, self._config.log_level)
        try:
            actor: Any = await self._ask(kind.remote, *arguments)
            fits = await actor.is_made_by.remote(*arguments)
            place: Place | None = await actor.start.remote() if fits else None
        except RayError as error:
            raise PlacementError(first_line(error)) from error
        if place is None:
            await self.drain(name)
            raise PlacementError("it ran with other settings, and was drained")
        return place

    async def ended(self, name: str) -> str:
        """Returns when the actor's process is dead, and why. That Ray does not answer is no death."""
        while True:
            try:
                actor: Any = await self._ask(ray.get_actor, name, NAMESPACE)
                await actor.wait.remote()
            except ValueError:
                return "it is gone"
            except ActorDiedError as error:
                return first_line(error)
            except (RayError, PlacementError) as error:
                log.debug("no word of a worker", worker=name, problem=first_line(error))
            await asyncio.sleep(_AGAIN_SECONDS)

    async def drain(self, name: str) -> None:
        """Drains the actor's server, then ends it."""
        actor = await self._find(name)
        if actor is None:
            return
        limit = self._config.listen.grace + self._config.call_timeout
        try:
            async with asyncio.timeout(limit):
                await actor.drain.remote()
        except TimeoutError:
            log.warning("drain failed", worker=name, problem=f"not drained within {limit:g} s")
        except RayError as error:
            log.warning("drain failed", worker=name, problem=first_line(error))
        await self.kill(name)

    async def kill(self, name: str) -> None:
        """Ends the actor's process."""
        actor = await self._find(name)
        if actor is not None:
            await self._ask(ray.kill, actor)

    async def _find(self, name: str) -> Any:
        try:
            return await self._ask(ray.get_actor, name, NAMESPACE)
        except (ValueError, RayError):
            return None

    async def _ask(self, call: Callable[..., T], *arguments: Any) -> T:
        """A blocking call of Ray on a thread of its own, for a limited time.

        The thread is a daemon: one that hangs holds up neither the other calls nor the end of this process.

        Raises:
            PlacementError: no answer in time.
        """
        if self._stuck >= _MOST_STUCK:
            raise PlacementError("Ray does not answer")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            self._stuck -= 1
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)  # type: ignore[arg-type]

        def work() -> None:
            result, problem = None, None
            try:
                result = call(*arguments)
            except BaseException as error:
                problem = error
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, result, problem)

        self._stuck += 1
        threading.Thread(target=work, name="ray-call", daemon=True).start()
        limit = self._config.call_timeout
        try:
            async with asyncio.timeout(limit):
                return await answer
        except TimeoutError:
            raise PlacementError(f"Ray did not answer within {limit:g} s") from None


def first_line(error: BaseException) -> str:
    """What an error of Ray says, without its traceback and its advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause = getattr(error, "cause", None)
    if isinstance(cause, Exception) and str(cause):
        return str(cause).splitlines()[0]
    return lines[0] if lines else type(error).__name__
