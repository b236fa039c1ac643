"""/metrics of the orchestrator, and the list of every process's /metrics for Prometheus to discover."""

from __future__ import annotations

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from draftproof.errors import ConfigError
from orchestrator.workers import Fleet


async def serve_http(registry: CollectorRegistry, fleet: Fleet, host: str, port: int) -> tuple[web.AppRunner, int]:
    """Serves /metrics and /sd (HTTP service discovery of Prometheus); returns the runner and the bound port.

    Raises:
        ConfigError: the port is taken.
    """

    async def metrics(request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(registry), headers={"Content-Type": content_type})

    async def discovery(request: web.Request) -> web.Response:
        return web.json_response(
            [
                {"targets": [worker.metrics_address], "labels": {"job": worker.role.value, "worker": worker.name}}
                for worker in fleet
                if worker.metrics_address
            ]
        )

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/sd", discovery)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, host, port)
    try:
        await site.start()
    except OSError as error:
        await runner.cleanup()
        raise ConfigError("metrics_port", f"can't listen on port {port}: {error.strerror}; choose another") from error
    bound: int = runner.addresses[0][1]
    return runner, bound
