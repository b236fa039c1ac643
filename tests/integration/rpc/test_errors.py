"""Errors through a real server and both kinds of client."""

from __future__ import annotations

import asyncio
import logging

import grpc
import pytest

from draftproof.errors import (
    BY_REASON,
    InternalError,
    OverloadedError,
    ProtocolError,
    UnavailableError,
    UnsupportedError,
)
from draftproof.rpc.channel import aio_channel
from draftproof.rpc.server import Service, start_server
from draftproof.rpc.status import from_rpc_error
from draftproof.v1 import generation_pb2, generation_pb2_grpc, target_pb2, target_pb2_grpc

LOGGER = "draftproof.rpc.interceptors"


@pytest.mark.parametrize("reason", BY_REASON)
async def test_every_error_arrives_as_it_left(reason, serve, invoke):
    async with serve() as (server, _):
        with pytest.raises(grpc.RpcError) as caught:
            await invoke(server.address, "UnaryUnary", f"fail {reason}".encode())
    error = from_rpc_error(caught.value)
    assert type(error) is BY_REASON[reason]
    assert error.message == f"{reason} on purpose: γ"
    assert error.metadata == {"field": "x", "limit": "1"}
    assert error.retry_delay == 0.25
    assert caught.value.code() is grpc.StatusCode[error.code]


async def test_errors_leave_every_kind_of_call(kind, serve, invoke):
    async with serve() as (server, _):
        with pytest.raises(grpc.RpcError) as caught:
            await invoke(server.address, kind, b"fail PREFIX_LOST")
        assert type(from_rpc_error(caught.value)) is BY_REASON["PREFIX_LOST"]
        assert await invoke(server.address, kind, b"next") != []


@pytest.mark.parametrize("command", [b"bug", b"config"])
async def test_a_bug_shows_an_id_and_nothing_else(command, kind, serve, invoke, caplog):
    with caplog.at_level(logging.ERROR, LOGGER):
        async with serve() as (server, _):
            with pytest.raises(grpc.RpcError) as caught:
                await invoke(server.address, kind, command)
    error = from_rpc_error(caught.value)
    assert type(error) is InternalError
    incident = error.message.split("incident ")[1].split(";")[0]
    wire = f"{caught.value.details()} {list(caught.value.trailing_metadata())}"
    assert not any(word in wire for word in ("secret", "Traceback", "ZeroDivision", "FileNotFound", ".py"))
    (record,) = [record for record in caplog.records if record.name == LOGGER]
    assert incident in record.getMessage()
    assert record.exc_info is not None


async def test_a_long_error_still_arrives(serve, invoke):
    async with serve() as (server, _):
        with pytest.raises(grpc.RpcError) as caught:
            await invoke(server.address, "UnaryUnary", b"shout")
    error = from_rpc_error(caught.value)
    assert type(error) is OverloadedError
    assert error.message.startswith("🦊🦊🦊")


async def test_nobody_there(serve, invoke):
    async with serve() as (server, _):
        address = server.address
    with pytest.raises(grpc.RpcError) as caught:
        await invoke(address, "UnaryUnary", b"x")
    assert type(from_rpc_error(caught.value)) is UnavailableError


async def test_a_method_the_server_lacks(serve, invoke):
    async with serve(token="t") as (server, _):
        with pytest.raises(grpc.RpcError) as caught:
            await invoke(server.address, "Unknown", b"x")
    assert type(from_rpc_error(caught.value)) is UnsupportedError


class Generation(generation_pb2_grpc.GenerationServiceServicer):
    async def GetServerInfo(self, request, context):
        return generation_pb2.GetServerInfoResponse()

    async def Generate(self, request, context):
        yield generation_pb2.GenerateResponse()


class Target(target_pb2_grpc.TargetServiceServicer):
    async def Verify(self, request_iterator, context):
        async for _ in request_iterator:
            yield target_pb2.VerifyResponse()


@pytest.mark.parametrize("token", [None, "t"])
@pytest.mark.parametrize(
    ("path", "stream"),
    [
        ("GenerationService/GetServerInfo", "unary_unary"),
        ("GenerationService/Generate", "unary_stream"),
        ("TargetService/Verify", "stream_stream"),
    ],
)
async def test_bytes_that_are_no_message_are_the_callers_fault(path, stream, token, caplog):
    services = [
        Service("G", generation_pb2_grpc.add_GenerationServiceServicer_to_server, Generation()),
        Service("T", target_pb2_grpc.add_TargetServiceServicer_to_server, Target()),
    ]
    server = await start_server(services, "127.0.0.1:0", token=token)
    try:
        async with aio_channel(str(server.address), token=token) as channel:
            with pytest.raises(grpc.RpcError) as caught:
                await first_answer(getattr(channel, stream)(f"/draftproof.v1.{path}"), stream, b"\xff\xff")
        assert type(from_rpc_error(caught.value)) is ProtocolError
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert caplog.records == []
    finally:
        await server.stop(0)


async def first_answer(method, stream, request):
    match stream:
        case "unary_unary":
            return await method(request, timeout=5)
        case "unary_stream":
            return await method(request, timeout=5).read()
    call = method(timeout=5)
    await call.write(request)
    return await call.read()


async def test_a_deadline(kind, serve, invoke):
    async with serve() as (server, script):
        with pytest.raises(grpc.RpcError) as caught:
            await invoke(server.address, kind, b"sleep 30", timeout=0.3)
        assert type(from_rpc_error(caught.value)) is BY_REASON["DEADLINE_EXCEEDED"]
        await asyncio.wait_for(script.left.wait(), 5)


@pytest.mark.parametrize("kind", ["UnaryUnary", "UnaryStream", "WrittenStream"])
async def test_cancelling_frees_the_handler(kind, serve, caplog):
    async with serve() as (server, script), aio_channel(str(server.address)) as channel:
        method = channel.unary_unary if kind == "UnaryUnary" else channel.unary_stream
        running = method(f"/draftproof.test.Script/{kind}")(b"sleep 30")
        await script.entered.wait()
        running.cancel()
        await asyncio.wait_for(script.left.wait(), 5)
        # Cancellation is no incident.
        assert script.freed == ["CancelledError"]
        assert [record for record in caplog.records if record.name == LOGGER] == []
