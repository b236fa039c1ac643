"""Server interceptors: the bearer token at the door, and exceptions to statuses on the way out."""

from __future__ import annotations

import hmac
import inspect
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Any, NoReturn, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from draftproof.errors import InternalError, ProtocolError, RequestError, UnauthenticatedError
from draftproof.rpc.status import ServicerContext, abort

_log = logging.getLogger(__name__)
_HEALTH_PREFIX = "/grpc.health.v1.Health/"

Guard: TypeAlias = Callable[[ServicerContext], AbstractAsyncContextManager[None]]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Continuation: TypeAlias = "Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]]"
# (request streaming, response streaming) -> constructor
_MAKE_HANDLER: dict[tuple[bool, bool], Callable[..., Handler]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Turns exceptions of handlers into rich statuses; nothing of a stack trace reaches the wire."""

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler | None:
        handler = await continuation(handler_call_details)
        method = handler_call_details.method

        @asynccontextmanager
        async def guard(context: ServicerContext) -> AsyncIterator[None]:
            try:
                yield
            except RequestError as error:
                await abort(context, error)
            except grpc.aio.BaseError:
                # An abort that was already made, or a peer that left in the middle of a write: gRPC ends the call.
                raise
            except Exception:
                incident = secrets.token_hex(8)
                _log.exception("%s failed; incident %s", method, incident)
                await abort(context, InternalError(f"internal error, incident {incident}; see the server's log"))

        return _guarded(handler, guard)


class BearerInterceptor(grpc.aio.ServerInterceptor):
    """Asks every call but health checks for `authorization: Bearer <token>`."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler | None:
        handler = await continuation(handler_call_details)
        if handler_call_details.method.startswith(_HEALTH_PREFIX) or self._authorised(handler_call_details):
            return handler

        async def refuse(request: Any, context: ServicerContext) -> NoReturn:
            await abort(context, UnauthenticatedError("the server asks for a bearer token; it was missing or wrong"))

        return None if handler is None else _like(handler, refuse)

    def _authorised(self, details: grpc.HandlerCallDetails) -> bool:
        given = [value for key, value in details.invocation_metadata or () if key == "authorization"]
        if len(given) != 1:
            return False
        value = given[0].encode() if isinstance(given[0], str) else given[0]
        return hmac.compare_digest(value, self._expected)


def _guarded(handler: Handler | None, guard: Guard) -> Handler | None:
    """The same handler, run inside `guard`. Handlers are coroutines or async generators, as grpc.aio has them."""
    if handler is None:
        return None
    # The stubs know only the blocking signatures.
    behaviour: Any = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream

    async def run(request: Any, context: ServicerContext) -> Any:
        async with guard(context):
            return await behaviour(_whole(request), context)

    async def run_generator(request: Any, context: ServicerContext) -> AsyncIterator[Any]:
        async with guard(context), aclosing(behaviour(_whole(request), context)) as responses:
            async for response in responses:
                yield response

    return _like(handler, run_generator if inspect.isasyncgenfunction(behaviour) else run)


def _whole(request: Any) -> Any:
    if isinstance(request, ProtocolError):
        raise request
    return request


def _like(handler: Handler, behaviour: Callable[..., Any]) -> Handler:
    """A handler of the same kind with another behaviour, for which torn requests are the peer's fault."""
    parse = handler.request_deserializer

    def deserialise(data: bytes) -> Any:
        try:
            return data if parse is None else parse(data)
        except DecodeError:
            torn = ProtocolError("the request is not a valid protobuf message")
            if handler.request_streaming:
                raise torn from None
            # Raised here, outside the handler, it would leave as UNKNOWN with the text of the exception.
            return torn

    make = _MAKE_HANDLER[handler.request_streaming, handler.response_streaming]
    return make(behaviour, deserialise, handler.response_serializer)
