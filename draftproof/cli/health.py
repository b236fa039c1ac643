"""Asking a server's standard health service."""

from __future__ import annotations

import socket

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

from draftproof.errors import ConfigError, UnavailableError
from draftproof.rpc.channel import channel
from draftproof.rpc.security import TlsFiles
from draftproof.rpc.status import from_rpc_error


def check(address: str, *, tls: TlsFiles | None = None, insecure: bool = False, timeout: float = 2.0) -> bool:
    """Whether the server says SERVING. Needs no token.

    Raises:
        RequestError: nobody answers, or not in the way of a server.
        ConfigError: the address is malformed, a file is missing, or plaintext isn't allowed.
    """
    with channel(address, tls=tls, insecure=insecure) as line:
        stub = health_pb2_grpc.HealthStub(line)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout)
        except grpc.RpcError as error:
            failure = from_rpc_error(error)
            raise UnavailableError(f"nobody answers at {address} ({failure.message})") from error
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def require_free(host: str, port: int, option: str) -> None:
    """Checks that a port can be listened on.

    Raises:
        ConfigError: it can't; says which option chooses another.
    """
    family, kind, protocol, _, address = _resolve(host, port, option)
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            raise ConfigError(
                option, f"port {port} on {host} can't be used ({error.strerror}); stop what runs there, or give another"
            ) from error


def _resolve(host: str, port: int, option: str) -> tuple[int, int, int, str, tuple[object, ...]]:
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise ConfigError(option, f"{host} isn't an address of this machine ({error.strerror})") from error
