"""A scripted service over all four kinds of call, and ways to serve and call it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import grpc
import pytest

from draftproof.errors import BY_REASON
from draftproof.rpc.server import RunningServer, Service, start_server

NAME = "draftproof.test.Script"


class Script:
    """Each request is a command; `freed` lists the calls whose handler has ended, and how."""

    def __init__(self) -> None:
        self.freed: list[str] = []
        self.entered = asyncio.Event()
        self.left = asyncio.Event()

    async def run(self, request: bytes) -> bytes:
        command, _, argument = request.decode().partition(" ")
        match command:
            case "fail":
                raise BY_REASON[argument](
                    f"{argument} on purpose: γ", metadata={"field": "x", "limit": "1"}, retry_delay=0.25
                )
            case "shout":
                raise BY_REASON["OVERLOADED"]("🦊" * 100_000, metadata={"k" * 999: "v" * 100_000})
            case "bug":
                raise ZeroDivisionError("secret of the stack")
            case "config":
                raise FileNotFoundError("/etc/secret")
            case "big":
                return bytes(int(argument))
            case "sleep":
                self.entered.set()
                try:
                    await asyncio.sleep(float(argument))
                    self.freed.append("finished")
                except BaseException as error:
                    self.freed.append(type(error).__name__)
                    raise
                finally:
                    self.left.set()
        return request[:64]

    async def unary_unary(self, request: bytes, context: Any) -> bytes:
        return await self.run(request)

    async def unary_stream(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield b"first"
        yield await self.run(request)

    async def written_stream(self, request: bytes, context: Any) -> None:
        await context.write(b"first")
        await context.write(await self.run(request))

    async def stream_unary(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        return [await self.run(request) async for request in requests][-1]

    async def stream_stream(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield await self.run(request)

    @staticmethod
    def register(script: Script, server: grpc.aio.Server) -> None:
        handlers = {
            "UnaryUnary": grpc.unary_unary_rpc_method_handler(script.unary_unary),
            "UnaryStream": grpc.unary_stream_rpc_method_handler(script.unary_stream),
            "WrittenStream": grpc.unary_stream_rpc_method_handler(script.written_stream),
            "StreamUnary": grpc.stream_unary_rpc_method_handler(script.stream_unary),
            "StreamStream": grpc.stream_stream_rpc_method_handler(script.stream_stream),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(NAME, handlers),))


KINDS = ["UnaryUnary", "UnaryStream", "WrittenStream", "StreamUnary", "StreamStream"]


def call(channel: grpc.Channel, kind: str, request: bytes, timeout: float = 10) -> list[bytes]:
    """One blocking call; all its responses."""
    path = f"/{NAME}/{kind}"
    match kind:
        case "UnaryUnary":
            return [channel.unary_unary(path)(request, timeout=timeout)]
        case "StreamUnary":
            return [channel.stream_unary(path)(iter([request]), timeout=timeout)]
        case "StreamStream":
            return list(channel.stream_stream(path)(iter([request]), timeout=timeout))
    return list(channel.unary_stream(path)(request, timeout=timeout))


async def acall(channel: grpc.aio.Channel, kind: str, request: bytes, timeout: float = 10) -> list[bytes]:
    """One asyncio call; all its responses. Streams are written and read, as the services do."""
    path = f"/{NAME}/{kind}"
    match kind:
        case "UnaryUnary":
            return [await channel.unary_unary(path)(request, timeout=timeout)]
        case "StreamUnary":
            return [await channel.stream_unary(path)(iter([request]), timeout=timeout)]
        case "StreamStream":
            stream = channel.stream_stream(path)(timeout=timeout)
            await stream.write(request)
            response = await stream.read()
            await stream.done_writing()
            assert await stream.read() is grpc.aio.EOF
            return [response]
    return [response async for response in channel.unary_stream(path)(request, timeout=timeout)]


Serve = Callable[..., AbstractAsyncContextManager[tuple[RunningServer, Script]]]


@pytest.fixture
def serve() -> Serve:
    """`async with serve(**settings) as (server, script)`: the scripted service on a free port."""

    @asynccontextmanager
    async def serving(address: str = "127.0.0.1:0", **settings: Any) -> AsyncIterator[tuple[RunningServer, Script]]:
        script = Script()
        server = await start_server([Service(NAME, Script.register, script)], address, **settings)
        try:
            yield server, script
        finally:
            await server.stop(0)

    return serving


@pytest.fixture(params=["sync", "aio"])
def invoke(request: pytest.FixtureRequest) -> Callable[..., Awaitable[list[bytes]]]:
    """`await invoke(address, kind, request, **channel settings)`: one call by either client, its error raised."""
    from draftproof.rpc.channel import aio_channel, channel

    async def blocking(address: object, kind: str, command: bytes, timeout: float = 10, **settings: Any) -> list[bytes]:
        def run() -> list[bytes]:
            with channel(str(address), **settings) as opened:
                return call(opened, kind, command, timeout)

        return await asyncio.to_thread(run)

    async def asynchronous(
        address: object, kind: str, command: bytes, timeout: float = 10, **settings: Any
    ) -> list[bytes]:
        async with aio_channel(str(address), **settings) as opened:
            return await acall(opened, kind, command, timeout)

    return blocking if request.param == "sync" else asynchronous


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Each kind of call."""
    return str(request.param)
