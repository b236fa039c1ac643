"""WeightsService of a cluster: one update, passed on to every worker of a role."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc.aio
import structlog

from draftproof.errors import PeerUnavailableError, RequestError
from draftproof.rpc.status import from_rpc_error
from draftproof.serving.weights import Frames, next_version, read_header, received
from draftproof.v1 import orchestrator_pb2, weights_pb2, weights_pb2_grpc
from draftproof.wire.weights import frames
from orchestrator.workers import ROLES, Fleet, Role, Worker

log = structlog.get_logger(__name__)


class ClusterWeights(weights_pb2_grpc.WeightsServiceServicer):
    """Updates all ready workers of a role at once, to one version; those that fail keep what they had."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._turn = asyncio.Lock()
        # workers that start anew count from 0 again; a version must not come twice
        self._versions = dict.fromkeys(Role, 0)

    async def UpdateWeights(
        self,
        request_iterator: Frames,
        context: grpc.aio.ServicerContext[weights_pb2.UpdateWeightsRequest, weights_pb2.UpdateWeightsResponse],
    ) -> weights_pb2.UpdateWeightsResponse:
        """Passes the update on. Where no worker takes it, the first one's error is raised.

        A target that fails, or that comes later with other weights, gets no new requests until it has been updated too.
        """
        # whether it is allowed, each worker knows for itself
        header = await read_header(request_iterator, allowed=True)
        role = Role.DRAFT if header.role == orchestrator_pb2.WORKER_ROLE_DRAFT else Role.TARGET
        async with self._turn, received(header, request_iterator) as (_, file):
            workers = self._fleet.ready(role)
            if not workers:
                raise PeerUnavailableError(f"no {role.value} is ready", retry_delay=1.0)
            present = max(self._versions[role], *(w.fingerprint.weights_version for w in workers))
            header.version = next_version(present, header.version if header.HasField("version") else None)
            header.role = ROLES[role]
            before = {w.weights for w in workers}
            patience = context.time_remaining()
            asked = [self._pass_on(worker, header, file, patience) for worker in workers]
            answers = await asyncio.gather(*asked, return_exceptions=True)
            return self._take(role, workers, before, answers, header)

    def _take(
        self,
        role: Role,
        workers: list[Worker],
        before: set[bytes],
        answers: list[weights_pb2.UpdatedServer | BaseException],
        header: weights_pb2.UpdateWeightsHeader,
    ) -> weights_pb2.UpdateWeightsResponse:
        servers: list[weights_pb2.UpdatedServer] = []
        errors: list[RequestError] = []
        for worker, answer in zip(workers, answers, strict=True):
            if isinstance(answer, RequestError):
                errors.append(answer)
                ours = worker.fingerprint
                answer = weights_pb2.UpdatedServer(
                    weights_version=ours.weights_version, weights_sha256=ours.weights_sha256, problem=answer.message
                )
                log.warning("weights not updated", worker=worker.name, problem=answer.problem)
            elif isinstance(answer, BaseException):
                raise answer
            answer.name = worker.name
            servers.append(answer)
        new = {s.weights_sha256 for s in servers if not s.problem}
        if not new:
            raise errors[0]
        self._versions[role] = header.version
        if role is Role.TARGET:
            restart = header.running == weights_pb2.RUNNING_SESSIONS_RESTART
            self._fleet.renew(before, new.pop(), restart=restart)
        self._fleet.notify()
        return weights_pb2.UpdateWeightsResponse(servers=servers)

    async def _pass_on(
        self,
        worker: Worker,
        header: weights_pb2.UpdateWeightsHeader,
        file: Path | None,
        patience: float | None,
    ) -> weights_pb2.UpdatedServer:
        stub: Any = weights_pb2_grpc.WeightsServiceStub(worker.channel)
        try:
            response = await stub.UpdateWeights(frames(header, file), timeout=patience)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None
        (server,) = response.servers
        # the next probe would say the same, later
        worker.fingerprint.weights_version = server.weights_version
        worker.fingerprint.weights_sha256 = server.weights_sha256
        updated: weights_pb2.UpdatedServer = server
        return updated
