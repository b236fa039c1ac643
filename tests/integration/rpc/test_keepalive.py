"""Idle streams stay up under the keenest keepalive, where a server with gRPC's defaults would end them."""

from __future__ import annotations

import asyncio

import grpc

from draftproof.rpc.channel import aio_channel
from draftproof.rpc.options import RpcLimits

PATH = "/draftproof.test.Script/StreamStream"


async def idle(address: str, seconds: float) -> bytes:
    """One message, silence, one more; the second answer."""
    async with aio_channel(address, limits=RpcLimits(keepalive_seconds=1)) as channel:
        stream = channel.stream_stream(PATH)()
        await stream.write(b"before")
        await stream.read()
        await asyncio.sleep(seconds)
        await stream.write(b"after")
        answer = await stream.read()
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF
        return answer


async def test_an_idle_stream_with_the_keenest_client_and_the_laziest_server(serve):
    async with serve(limits=RpcLimits(keepalive_seconds=3600)) as (server, script):
        careless = grpc.aio.server()
        type(script).register(script, careless)
        port = careless.add_insecure_port("127.0.0.1:0")
        await careless.start()
        # Five pings; gRPC's default ends the connection at the third.
        ours, theirs = await asyncio.gather(
            idle(str(server.address), 5.5), idle(f"127.0.0.1:{port}", 5.5), return_exceptions=True
        )
        await careless.stop(0)
    assert ours == b"after"
    # What grpc.aio raises from write() where the stream has ended meanwhile.
    assert isinstance(theirs, asyncio.InvalidStateError)
