"""Dialling a server: sync and asyncio channels with the same limits, security and bearer token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import grpc

from draftproof.rpc.options import Options, RpcLimits, channel_options
from draftproof.rpc.security import Address, TlsFiles, channel_credentials


def channel(
    address: str,
    *,
    limits: RpcLimits | None = None,
    tls: TlsFiles | None = None,
    token: str | None = None,
    insecure: bool = False,
) -> grpc.Channel:
    """A channel for blocking calls; connects on first use.

    Args:
        address: "host:port".
        limits: message and keepalive limits.
        tls: certificate files; `TlsFiles()` trusts the public authorities, None is plaintext.
        token: bearer token sent with every call; in plaintext to loopback addresses alone.
        insecure: allows plaintext beyond loopback.

    Raises:
        ConfigError: the address is malformed, a file is missing, or plaintext isn't allowed.
    """
    where = Address.parse(address)
    credentials = channel_credentials(where, tls, insecure, token)
    options = _options(where, limits)
    plain = (
        grpc.insecure_channel(str(where), options)
        if credentials is None
        else grpc.secure_channel(str(where), credentials, options)
    )
    return plain if token is None else grpc.intercept_channel(plain, _Bearer(token))


def aio_channel(
    address: str,
    *,
    limits: RpcLimits | None = None,
    tls: TlsFiles | None = None,
    token: str | None = None,
    insecure: bool = False,
) -> grpc.aio.Channel:
    """The same for asyncio; belongs to the running event loop."""
    where = Address.parse(address)
    credentials = channel_credentials(where, tls, insecure, token)
    options = _options(where, limits)
    interceptors = None if token is None else _aio_bearer(token)
    if credentials is None:
        return grpc.aio.insecure_channel(str(where), options, interceptors=interceptors)
    return grpc.aio.secure_channel(str(where), credentials, options, interceptors=interceptors)


def _options(address: Address, limits: RpcLimits | None) -> Options:
    options = channel_options(limits or RpcLimits())
    if address.is_loopback:
        # A proxy from the environment can't reach this machine's own loopback.
        options.append(("grpc.enable_http_proxy", 0))
    return options


@dataclass(frozen=True, slots=True)
class _CallDetails(grpc.ClientCallDetails):
    method: str
    timeout: float | None
    metadata: Any
    credentials: grpc.CallCredentials | None
    wait_for_ready: bool | None
    compression: grpc.Compression | None


class _Bearer(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Adds the token to blocking calls of every kind."""

    def __init__(self, token: str) -> None:
        self._entry = ("authorization", f"Bearer {token}")

    def _authorised(self, details: grpc.ClientCallDetails) -> _CallDetails:
        return _CallDetails(
            details.method,
            details.timeout,
            [*(details.metadata or ()), self._entry],
            details.credentials,
            details.wait_for_ready,
            details.compression,
        )

    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return continuation(self._authorised(client_call_details), request)

    def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return continuation(self._authorised(client_call_details), request)

    def intercept_stream_unary(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        return continuation(self._authorised(client_call_details), request_iterator)

    def intercept_stream_stream(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        return continuation(self._authorised(client_call_details), request_iterator)


class _AioBearer:
    """Adds the token to asyncio calls; grpc.aio takes each interceptor for one kind of call alone."""

    def __init__(self, token: str) -> None:
        self._value = f"Bearer {token}"

    def _authorised(self, details: grpc.aio.ClientCallDetails) -> grpc.aio.ClientCallDetails:
        metadata = grpc.aio.Metadata(*(details.metadata or ()))
        metadata.add("authorization", self._value)
        return grpc.aio.ClientCallDetails(
            details.method, details.timeout, metadata, details.credentials, details.wait_for_ready
        )


class _AioUnaryUnary(_AioBearer, grpc.aio.UnaryUnaryClientInterceptor):
    async def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return await continuation(self._authorised(client_call_details), request)


class _AioUnaryStream(_AioBearer, grpc.aio.UnaryStreamClientInterceptor):
    async def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return await continuation(self._authorised(client_call_details), request)


class _AioStreamUnary(_AioBearer, grpc.aio.StreamUnaryClientInterceptor):
    async def intercept_stream_unary(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        return await continuation(self._authorised(client_call_details), request_iterator)


class _AioStreamStream(_AioBearer, grpc.aio.StreamStreamClientInterceptor):
    async def intercept_stream_stream(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        return await continuation(self._authorised(client_call_details), request_iterator)


def _aio_bearer(token: str) -> list[grpc.aio.ClientInterceptor]:
    return [kind(token) for kind in (_AioUnaryUnary, _AioUnaryStream, _AioStreamUnary, _AioStreamStream)]
