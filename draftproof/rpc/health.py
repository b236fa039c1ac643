"""The standard health service, one status for a whole server.

Not grpcio's own servicer: there a watcher that doesn't read holds up every change of status, and open watches hold up
the end of the server for its whole grace period.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import grpc
from grpc_health.v1 import health_pb2 as pb  # type: ignore[import-untyped]
from grpc_health.v1 import health_pb2_grpc

from draftproof.rpc.status import ServicerContext

SERVICE_NAME: str = pb.DESCRIPTOR.services_by_name["Health"].full_name


class HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Answers for "" (the server) and for each service by its full name."""

    def __init__(self, services: Sequence[str]) -> None:
        self._names = frozenset(["", *services])
        self._serving = False
        self._draining = False
        self._ended = False
        self._changed = asyncio.Event()

    def set_serving(self, serving: bool) -> None:
        """Sets the status of all names; without effect once draining."""
        self._serving = serving and not self._draining
        self._notify()

    def start_draining(self) -> None:
        """NOT_SERVING for good."""
        self._draining = True
        self.set_serving(False)

    def end_watches(self) -> None:
        """Lets every watch end after the status it has still to send."""
        self._ended = True
        self._notify()

    async def Check(self, request: pb.HealthCheckRequest, context: ServicerContext) -> pb.HealthCheckResponse:
        if request.service not in self._names:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service here")
        return pb.HealthCheckResponse(status=self._status(request.service))

    async def Watch(
        self, request: pb.HealthCheckRequest, context: ServicerContext
    ) -> AsyncIterator[pb.HealthCheckResponse]:
        sent = None
        while True:
            changed = self._changed
            status = self._status(request.service)
            if status != sent:
                sent = status
                yield pb.HealthCheckResponse(status=status)
                # The status may have changed while a slow peer took this one.
                continue
            if self._ended:
                return
            await changed.wait()

    def _status(self, service: str) -> int:
        if service not in self._names:
            return int(pb.HealthCheckResponse.SERVICE_UNKNOWN)
        return int(pb.HealthCheckResponse.SERVING if self._serving else pb.HealthCheckResponse.NOT_SERVING)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
