"""A server's life: ports, health, reflection, stopping."""

from __future__ import annotations

import asyncio
import socket
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from draftproof.errors import ConfigError, UnavailableError
from draftproof.rpc.channel import aio_channel
from draftproof.rpc.server import start_server
from draftproof.rpc.status import from_rpc_error

NAME = "draftproof.test.Script"
UNARY = f"/{NAME}/UnaryUnary"
Status = health_pb2.HealthCheckResponse


async def health_of(channel: grpc.aio.Channel, service: str = "") -> int:
    reply = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service), timeout=5)
    return reply.status


async def test_port_zero_takes_a_free_one(serve):
    async with serve() as (one, _), serve() as (other, _):
        assert 0 < one.port != other.port > 0
        assert str(one.address) == f"127.0.0.1:{one.port}"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
async def test_a_taken_port_says_what_to_do(host, serve, capfd):
    async with serve() as (server, _):
        with pytest.raises(ConfigError) as caught:
            await start_server([], f"{host}:{server.port}", insecure=True)
    message = str(caught.value)
    assert f"port {server.port} on {host} is in use" in message
    assert "choose another port" in message
    assert "\n" not in message
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_port_that_another_program_holds(host):
    """Also where only one of the addresses behind a name is taken: gRPC would listen on the other, and say nothing."""
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(ConfigError, match="in use"):
        await start_server([], f"{host}:{other.getsockname()[1]}")


async def test_a_name_with_an_address_that_this_machine_lacks(serve, monkeypatch):
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 0)) for host in ("192.0.2.1", "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    async with serve("localhost:0") as (server, _):
        assert server.port > 0


async def test_a_port_just_left_is_free_again(serve):
    async with serve() as (server, _), aio_channel(str(server.address)) as channel:
        await channel.unary_unary(UNARY)(b"x")
        port = server.port
    async with serve(f"127.0.0.1:{port}") as (server, _):
        assert server.port == port


@pytest.mark.parametrize(
    ("address", "what"),
    [("192.0.2.1:0", "not an address of this machine"), ("no-such-host.invalid:0", "can't resolve")],
)
async def test_addresses_that_cannot_be_served(address, what):
    with pytest.raises(ConfigError, match=what):
        await start_server([], address, insecure=True)


async def test_plaintext_beyond_loopback_must_be_asked_for(serve):
    with pytest.raises(ConfigError, match="insecure"):
        await start_server([], "0.0.0.0:0")
    async with serve("0.0.0.0:0", insecure=True) as (server, _), aio_channel(f"127.0.0.1:{server.port}") as channel:
        assert await channel.unary_unary(UNARY)(b"x") == b"x"


async def test_health(serve):
    async with serve() as (server, _), aio_channel(str(server.address)) as channel:
        assert await health_of(channel) == await health_of(channel, NAME) == Status.SERVING
        server.set_serving(False)
        assert await health_of(channel) == await health_of(channel, NAME) == Status.NOT_SERVING
        server.set_serving(True)
        assert await health_of(channel) == Status.SERVING
        with pytest.raises(grpc.RpcError) as caught:
            await health_of(channel, "other.Service")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        server.start_draining()
        server.set_serving(True)
        assert await health_of(channel) == Status.NOT_SERVING
        assert await channel.unary_unary(UNARY)(b"still served") == b"still served"


async def test_a_server_that_is_not_ready_yet_says_so_from_the_start(serve):
    async with serve(serving=False) as (server, _), aio_channel(str(server.address)) as channel:
        assert await health_of(channel) == await health_of(channel, NAME) == Status.NOT_SERVING
        server.set_serving(True)
        assert await health_of(channel) == Status.SERVING


async def test_a_watch_sees_every_change_and_does_not_hold_up_the_end(serve):
    async with serve() as (server, _), aio_channel(str(server.address)) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=NAME))
        unknown = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="other"))
        assert (await watch.read()).status == Status.SERVING
        assert (await unknown.read()).status == Status.SERVICE_UNKNOWN
        server.set_serving(False)
        assert (await watch.read()).status == Status.NOT_SERVING
        server.set_serving(True)
        assert (await watch.read()).status == Status.SERVING
        start = time.monotonic()
        await server.stop(30)
        assert time.monotonic() - start < 5
        assert (await watch.read()).status == Status.NOT_SERVING
        assert await watch.read() is grpc.aio.EOF
        assert await unknown.read() is grpc.aio.EOF


async def test_reflection_lists_the_services(serve):
    async with serve() as (server, _), aio_channel(str(server.address)) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        stream = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        names = {service.name for service in (await stream.read()).list_services_response.service}
    assert names == {NAME, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}


async def test_stop_lets_a_running_call_finish_and_takes_no_new_one(serve):
    async with serve() as (server, script), aio_channel(str(server.address)) as channel:
        running = channel.unary_unary(UNARY)(b"sleep 0.5")
        await script.entered.wait()
        stopping = asyncio.create_task(server.stop(10))
        await asyncio.sleep(0.1)
        with pytest.raises(grpc.RpcError) as caught:
            await channel.unary_unary(UNARY)(b"late", timeout=5)
        assert type(from_rpc_error(caught.value)) is UnavailableError
        assert await running == b"sleep 0.5"
        start = time.monotonic()
        await stopping
        await server.wait()
        assert time.monotonic() - start < 5


async def test_stop_cancels_what_outlasts_the_grace(serve):
    async with serve() as (server, script), aio_channel(str(server.address)) as channel:
        running = asyncio.ensure_future(channel.unary_unary(UNARY)(b"sleep 30"))
        await script.entered.wait()
        start = time.monotonic()
        await server.stop(0.2)
        assert time.monotonic() - start < 5
        with pytest.raises(grpc.RpcError) as caught:
            await running
        assert type(from_rpc_error(caught.value)) is UnavailableError
        await asyncio.wait_for(script.left.wait(), 5)
        assert script.freed == ["CancelledError"]
