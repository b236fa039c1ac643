"""The parts that every service process has: its gRPC server, its metrics endpoint, its loops."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, start_http_server

from draftproof.engine.interface import Tokenizer
from draftproof.errors import ConfigError
from draftproof.rpc.server import RunningServer, Service, start_server
from draftproof.sampling.pipeline import SAMPLING_CONTRACT
from draftproof.serving.options import ListenConfig
from draftproof.v1 import fingerprint_pb2
from draftproof.wire import fingerprint as wire_fingerprint

log = structlog.get_logger(__name__)


async def listen(services: Sequence[Service], config: ListenConfig) -> RunningServer:
    """Starts the gRPC server; health is NOT_SERVING until the service says otherwise.

    Raises:
        ConfigError: the port is taken, or security settings don't fit.
    """
    server = await start_server(
        services,
        config.address,
        limits=config.limits,
        tls=config.tls,
        token=config.token,
        insecure=config.insecure,
        serving=False,
    )
    return server


def serve_metrics(registry: CollectorRegistry, config: ListenConfig) -> int | None:
    """Serves /metrics where the configuration asks for it; returns the bound port.

    Raises:
        ConfigError: the port is taken.
    """
    if config.metrics_port is None:
        return None
    try:
        server, _ = start_http_server(config.metrics_port, config.host, registry)
    except OSError as error:
        raise ConfigError(
            "metrics_port", f"can't listen on port {config.metrics_port}: {error.strerror}; choose another"
        ) from error
    log.info("metrics", port=server.server_port)
    return int(server.server_port)


def vocabulary(tokenizer: Tokenizer, vocab_size: int) -> list[str]:
    """All tokens in id order."""
    return [tokenizer.token(i) for i in range(vocab_size)]


def fingerprint(tokens: Sequence[str], model: str, weights_sha256: bytes) -> fingerprint_pb2.Fingerprint:
    """Identity of a model for the handshake."""
    return fingerprint_pb2.Fingerprint(
        tokenizer_sha256=wire_fingerprint.digest(tokens),
        vocab_size=len(tokens),
        sampling_contract=SAMPLING_CONTRACT,
        model=model,
        weights_sha256=weights_sha256,
    )


async def run_all(loops: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Runs loops that never return; the first error ends them all and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            for loop in loops:
                group.create_task(loop)
    except* Exception as errors:
        raise errors.exceptions[0] from None
