"""The orchestrator process: fleet, supervisor, front door."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry

from draftproof.metrics.cluster import OrchestratorMetrics
from draftproof.rpc.server import RunningServer, Service
from draftproof.sampling.params import Rule
from draftproof.serving import process
from draftproof.serving.options import ListenConfig
from draftproof.v1 import generation_pb2_grpc, orchestrator_pb2_grpc, weights_pb2_grpc
from draftproof.version import VERSION
from orchestrator.admission import Admission
from orchestrator.front_door import FrontDoor
from orchestrator.http import serve_http
from orchestrator.mesh import Mesh
from orchestrator.probe import ProbeConfig
from orchestrator.ray_placement import NO_RAY, RayConfig, RayPlacement, connect
from orchestrator.relay import RelayConfig
from orchestrator.routing import Router, misfit
from orchestrator.steering import Steering
from orchestrator.supervisor import Dial, Placement, Supervisor, SupervisorConfig
from orchestrator.updating import ClusterWeights
from orchestrator.workers import Fleet, Role, State, Worker

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrchestratorConfig:
    """Settings of an orchestrator process.

    Attributes:
        queue_limit: most requests that wait for admission.
        queue_share: requests admitted per target slot; above 1, targets keep a short queue of their own.
        mesh: security of the links to workers.
    """

    supervisor: SupervisorConfig
    listen: ListenConfig = field(default_factory=ListenConfig)
    relay: RelayConfig = field(default_factory=RelayConfig)
    probes: ProbeConfig = field(default_factory=ProbeConfig)
    queue_limit: int = 256
    mesh: Mesh = field(default_factory=Mesh)
    queue_share: float = 1.5


class OrchestratorApp:
    """Serves GenerationService and OrchestratorService over a fleet of workers."""

    def __init__(self, config: OrchestratorConfig, placement: Placement | None, dial: Dial | None = None) -> None:
        self._config = config
        self._registry = CollectorRegistry()
        self.fleet = Fleet()
        metrics = OrchestratorMetrics(self._registry)
        metrics.build_info(role="orchestrator", version=VERSION)
        self._admission = Admission(self._capacity, config.queue_limit, config.relay.no_worker)
        self._metrics = metrics
        self._follow_gauges(metrics)
        limits = config.listen.limits
        self._door = FrontDoor(self.fleet, Router(), self._admission, config.relay, metrics, limits.max_message_bytes)
        self._supervisor = Supervisor(
            self.fleet,
            placement,
            dial or config.mesh.dial(limits),
            config.supervisor,
            config.probes,
            lambda role: metrics.restarted(role.value),
        )
        self._steering = Steering(self._door, self.fleet, self._admission, metrics, self._supervisor)
        self._http: web.AppRunner | None = None
        self.metrics_port: int | None = None
        self.server: RunningServer | None = None

    async def start(self) -> None:
        """Listens; healthy once a target is ready.

        Raises:
            ConfigError: a port is taken, or an attached address may not be dialled.
        """
        listen = self._config.listen
        await self._supervisor.check()
        if listen.metrics_port is not None:
            self._http, self.metrics_port = await serve_http(
                self._registry, self.fleet, listen.host, listen.metrics_port
            )
            log.info("metrics", port=self.metrics_port)
        self.server = await process.listen(
            [
                Service(
                    "draftproof.v1.GenerationService",
                    generation_pb2_grpc.add_GenerationServiceServicer_to_server,
                    self._door,
                ),
                Service(
                    "draftproof.v1.OrchestratorService",
                    orchestrator_pb2_grpc.add_OrchestratorServiceServicer_to_server,
                    self._steering,
                ),
                Service(
                    "draftproof.v1.WeightsService",
                    weights_pb2_grpc.add_WeightsServiceServicer_to_server,
                    ClusterWeights(self.fleet),
                ),
            ],
            listen,
        )
        log.info("serving", address=str(self.server.address))

    async def run(self) -> None:
        """Runs the supervisor and keeps health in step with the fleet."""
        await process.run_all([self._supervisor.run(), self._follow()])

    async def drain(self) -> None:
        """NOT_SERVING, no new requests, the grace period for running ones."""
        assert self.server is not None
        self.server.start_draining()
        await self._door.drain(self._config.listen.grace)
        await self.server.stop(1.0)
        if self._http is not None:
            await self._http.cleanup()

    async def close(self) -> None:
        """Stops serving at once."""
        assert self.server is not None
        await self.server.stop(0.0)
        if self._http is not None:
            await self._http.cleanup()

    async def _follow(self) -> None:
        assert self.server is not None
        while True:
            targets = self.fleet.ready(Role.TARGET)
            self.server.set_serving(bool(targets))
            self._metrics.pairs([w.name for w in self.fleet.ready(Role.DRAFT)], [w.name for w in targets], Rule.BLOCK)
            self._admission.wake()
            self._name_misfits(targets)
            await self.fleet.changed()

    def _name_misfits(self, targets: list[Worker]) -> None:
        """Says once of a draft that none of the targets takes it: nothing would fail, only be slow."""
        for draft in self.fleet.ready(Role.DRAFT):
            problems = [misfit(draft, target) for target in targets]
            if problems and all(problems) and draft.problem != problems[0]:
                draft.problem = problems[0]
                log.warning("draft and target don't fit", worker=draft.name, problem=draft.problem)

    def _follow_gauges(self, metrics: OrchestratorMetrics) -> None:
        admission = self._admission

        def counter(role: Role, state: State) -> Callable[[], float]:
            return lambda: sum(w.role is role and w.state is state for w in self.fleet)

        metrics.follow(
            lambda: admission.running,
            lambda: admission.waiting,
            self._config.queue_limit,
            {(role.value, state.value): counter(role, state) for role in Role for state in State},
        )

    def _capacity(self) -> int:
        return int(self._config.queue_share * sum(t.slots for t in self.fleet.ready(Role.TARGET)))


def load(config: OrchestratorConfig, ray: RayConfig) -> OrchestratorApp:
    """Connects to Ray, where it is wanted, and builds the process.

    Raises:
        ConfigError: the port is taken, or there is no such cluster.
    """
    config.listen.check()
    if ray.address == NO_RAY:
        return OrchestratorApp(config, None)
    connect(ray)
    return OrchestratorApp(config, RayPlacement(ray))
