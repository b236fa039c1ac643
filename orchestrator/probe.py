"""Asks every worker how it is, again and again."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import grpc.aio
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

from draftproof.rpc.security import Address
from draftproof.rpc.status import from_rpc_error
from draftproof.v1 import generation_pb2, generation_pb2_grpc
from orchestrator.workers import Fleet, State, Worker

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ProbeConfig:
    """Settings of the probes.

    Attributes:
        interval: seconds between probes of a worker.
        timeout: seconds an answer may take.
        lost_after: seconds without a good answer after which a worker counts as lost.
    """

    interval: float = 0.5
    timeout: float = 2.0
    lost_after: float = 5.0


async def watch(worker: Worker, fleet: Fleet, config: ProbeConfig) -> None:
    """Keeps a worker's state and load up to date; returns when it is lost."""
    good_at = time.monotonic()
    while True:
        healthy = await look(worker, fleet, config.timeout)
        now = time.monotonic()
        if healthy:
            good_at = now
        if now - good_at > config.lost_after and worker.state is not State.DRAINING:
            log.warning("worker lost", worker=worker.name, problem=worker.problem)
            worker.abandon()
            return
        await asyncio.sleep(config.interval)


async def look(worker: Worker, fleet: Fleet, timeout: float) -> bool:
    """Probes a worker once and takes note; True where it serves."""
    try:
        healthy = await _probe(worker, timeout)
    except grpc.aio.AioRpcError as error:
        healthy, worker.problem = False, from_rpc_error(error).message
    _settle(worker, fleet, healthy)
    return healthy


async def _probe(worker: Worker, timeout: float) -> bool:
    assert worker.channel is not None
    health = health_pb2_grpc.HealthStub(worker.channel)
    answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=timeout)
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        worker.problem = "says NOT_SERVING"
        return False
    stub = generation_pb2_grpc.GenerationServiceStub(worker.channel)
    info = await stub.GetServerInfo(generation_pb2.GetServerInfoRequest(), timeout=timeout)
    worker.fingerprint = info.draft if info.role == "draft" else info.target
    worker.slots = info.slots
    worker.waiting = info.waiting
    worker.max_context = info.max_context
    worker.max_gamma = info.max_gamma
    worker.default_gamma = info.default_gamma
    worker.chat_template = info.chat_template
    if worker.pid not in (0, info.pid):
        worker.turn(worker.state)  # another process has taken its place
    worker.pid = info.pid
    if info.metrics_port:
        worker.metrics_address = str(Address(Address.parse(worker.address).host, info.metrics_port))
    return True


def _settle(worker: Worker, fleet: Fleet, healthy: bool) -> None:
    if worker.state is State.DRAINING:
        return
    state = State.READY if healthy else State.STARTING if worker.state is State.STARTING else State.SUSPECT
    if state is not worker.state:
        log.info("worker", worker=worker.name, state=state.value, problem=None if healthy else worker.problem)
        worker.turn(state)
        fleet.notify()
