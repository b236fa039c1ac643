"""Watching and steering a cluster: OrchestratorService."""

from __future__ import annotations

import time

import grpc.aio
from google.protobuf.duration_pb2 import Duration

from draftproof.errors import InvalidArgumentError
from draftproof.metrics.cluster import OrchestratorMetrics
from draftproof.v1 import orchestrator_pb2, orchestrator_pb2_grpc
from orchestrator.admission import Admission
from orchestrator.front_door import FrontDoor
from orchestrator.supervisor import Supervisor
from orchestrator.workers import Fleet


class Steering(orchestrator_pb2_grpc.OrchestratorServiceServicer):
    """OrchestratorService."""

    def __init__(
        self,
        door: FrontDoor,
        fleet: Fleet,
        admission: Admission,
        metrics: OrchestratorMetrics,
        supervisor: Supervisor,
    ) -> None:
        self._supervisor = supervisor
        self._door = door
        self._fleet = fleet
        self._admission = admission
        self._metrics = metrics
        self._started = time.monotonic()

    async def Cancel(
        self,
        request: orchestrator_pb2.CancelRequest,
        context: grpc.aio.ServicerContext[orchestrator_pb2.CancelRequest, orchestrator_pb2.CancelResponse],
    ) -> orchestrator_pb2.CancelResponse:
        """Cancels requests by name."""
        if not request.request_id:
            raise InvalidArgumentError.of("request_id", "the name of a request", request.request_id)
        return orchestrator_pb2.CancelResponse(cancelled=self._door.requests.cancel(request.request_id))

    async def ListWorkers(
        self,
        request: orchestrator_pb2.ListWorkersRequest,
        context: grpc.aio.ServicerContext[orchestrator_pb2.ListWorkersRequest, orchestrator_pb2.ListWorkersResponse],
    ) -> orchestrator_pb2.ListWorkersResponse:
        """Lists the fleet."""
        return orchestrator_pb2.ListWorkersResponse(workers=[worker.describe() for worker in self._fleet])

    async def ReplaceWorker(
        self,
        request: orchestrator_pb2.ReplaceWorkerRequest,
        context: grpc.aio.ServicerContext[
            orchestrator_pb2.ReplaceWorkerRequest, orchestrator_pb2.ReplaceWorkerResponse
        ],
    ) -> orchestrator_pb2.ReplaceWorkerResponse:
        """Drains a worker and starts its successor."""
        try:
            await self._supervisor.replace(request.name)
        except LookupError:
            raise InvalidArgumentError.of("worker", "one that this orchestrator has placed", request.name) from None
        return orchestrator_pb2.ReplaceWorkerResponse()

    async def Stats(
        self,
        request: orchestrator_pb2.StatsRequest,
        context: grpc.aio.ServicerContext[orchestrator_pb2.StatsRequest, orchestrator_pb2.StatsResponse],
    ) -> orchestrator_pb2.StatsResponse:
        """Adds up."""
        totals = self._door.totals
        uptime = Duration()
        uptime.FromMilliseconds(int(1000 * (time.monotonic() - self._started)))
        return orchestrator_pb2.StatsResponse(
            running=self._admission.running,
            waiting=self._admission.waiting,
            finished=totals.finished,
            failed=totals.failed,
            fallbacks=self._metrics.fallbacks,
            drafted=totals.drafted,
            accepted=totals.accepted,
            committed=totals.committed,
            rounds=totals.rounds,
            uptime=uptime,
        )
