"""Starting and stopping a server: services, health, reflection, interceptors and one port."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1 import health_pb2_grpc  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection  # type: ignore[import-untyped]

from draftproof.errors import ConfigError
from draftproof.rpc.health import SERVICE_NAME as HEALTH_NAME
from draftproof.rpc.health import HealthServicer
from draftproof.rpc.interceptors import BearerInterceptor, ErrorInterceptor
from draftproof.rpc.options import RpcLimits, server_options
from draftproof.rpc.security import Address, TlsFiles, check_token, server_credentials


@dataclass(frozen=True, slots=True)
class Service:
    """One gRPC service to serve.

    Attributes:
        name: full name, such as "draftproof.v1.TargetService"; also its name in health checks.
        register: the generated `add_…Servicer_to_server`.
        servicer: its implementation; methods are coroutines or async generators.
    """

    name: str
    register: Callable[[Any, grpc.aio.Server], None]
    servicer: object


class RunningServer:
    """A server that accepts calls. Belongs to the event loop that started it."""

    def __init__(self, server: grpc.aio.Server, health: HealthServicer, address: Address) -> None:
        self._server = server
        self._health = health
        self.address = address

    @property
    def port(self) -> int:
        """The bound port."""
        return self.address.port

    def set_serving(self, serving: bool) -> None:
        """Sets the health of the server and of each service; without effect once it drains."""
        self._health.set_serving(serving)

    def start_draining(self) -> None:
        """Turns health to NOT_SERVING for good; calls are still accepted."""
        self._health.start_draining()

    async def stop(self, grace: float) -> None:
        """NOT_SERVING, no new calls, `grace` seconds for running ones, then they are cancelled."""
        self._health.start_draining()
        self._health.end_watches()
        await self._server.stop(grace)

    async def wait(self) -> None:
        """Returns when the server has stopped."""
        await self._server.wait_for_termination()


async def start_server(
    services: Sequence[Service],
    address: str,
    *,
    limits: RpcLimits | None = None,
    tls: TlsFiles | None = None,
    token: str | None = None,
    insecure: bool = False,
    serving: bool = True,
) -> RunningServer:
    """Serves on `address` ("host:port"; port 0 takes a free one), with standard health and reflection.

    Args:
        services: what to serve.
        address: where to listen.
        limits: message and keepalive limits.
        tls: certificate files; None is plaintext, which needs a loopback address or `insecure`.
        token: bearer token that every call but health checks must carry; None asks for none.
        insecure: allows plaintext beyond loopback.
        serving: health from the first moment on.

    Raises:
        ConfigError: the port is taken, the address isn't this machine's, a file is missing, or plaintext isn't allowed.
    """
    where = Address.parse(address)
    credentials = server_credentials(where, tls, insecure)
    _check(where)
    interceptors: list[grpc.aio.ServerInterceptor] = [ErrorInterceptor()]
    if token is not None:
        check_token(token)
        interceptors.append(BearerInterceptor(token))
    server = grpc.aio.server(interceptors=interceptors, options=server_options(limits or RpcLimits()))
    for service in services:
        service.register(service.servicer, server)
    names = [service.name for service in services]
    health = HealthServicer(names)
    health.set_serving(serving)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    reflection.enable_server_reflection([*names, HEALTH_NAME, reflection.SERVICE_NAME], server)
    try:
        if credentials is None:
            port = server.add_insecure_port(str(where))
        else:
            port = server.add_secure_port(str(where), credentials)
    except RuntimeError as error:
        raise ConfigError("address", f"can't listen on {where}: {error}") from error
    await server.start()
    return RunningServer(server, health, Address(where.host, port))


def check_address(address: str) -> None:
    """Says early, before a model is loaded, why an address can't be served.

    Raises:
        ConfigError: it is malformed, taken, or not this machine's.
    """
    _check(Address.parse(address))


def _check(address: Address) -> None:
    """Says why an address can't be bound; gRPC doesn't, and takes half of a dual-stack name silently."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError("address", f"can't resolve host {address.host!r}: {error.strerror}") from error
    failures = []
    for family, kind, protocol, _, where in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(where)
                probe.listen(1)
        except OSError as error:
            failures.append(error)
    taken = [error for error in failures if error.errno == errno.EADDRINUSE]
    # A name may also stand for an address that this machine lacks, such as ::1 where IPv6 is off.
    if taken or len(failures) == len(found):
        cause = (taken or failures)[0]
        raise ConfigError("address", _bind_problem(address, cause)) from cause


def _bind_problem(address: Address, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {address.port} on {address.host} is in use; stop the process that holds it, or choose another port"
            " (0 takes a free one)"
        )
    if error.errno == errno.EACCES:
        return f"port {address.port} needs privileges; choose one above 1023"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{address.host} is not an address of this machine; use 127.0.0.1, or 0.0.0.0 for all interfaces"
    return f"can't listen on {address}: {error.strerror}"
