"""Message limits in both directions, on both sides: the largest goes through, more is a typed error, never a hang."""

from __future__ import annotations

import grpc
import numpy as np
import pytest

from draftproof.errors import MessageTooLargeError
from draftproof.rpc.channel import aio_channel
from draftproof.rpc.options import RpcLimits
from draftproof.rpc.server import Service, start_server
from draftproof.rpc.status import from_rpc_error
from draftproof.sampling.draft_q import Dense
from draftproof.v1 import target_pb2, target_pb2_grpc, verdict_pb2
from draftproof.wire.distribution import decode, encode

SMALL = RpcLimits(max_message_bytes=10_000)
LARGE = RpcLimits()


class Mirror(target_pb2_grpc.TargetServiceServicer):
    """Decodes every q of a block and sends the masses back as a trace."""

    async def Verify(self, request_iterator, context):
        async for request in request_iterator:
            tokens = []
            for proposal in request.block.proposals:
                q = decode(proposal.q, 256 * 1024)
                trace = verdict_pb2.PositionTrace(p=verdict_pb2.Masses(masses=q.masses))
                tokens.append(verdict_pb2.Token(id=proposal.token_id, trace=trace))
            yield target_pb2.VerifyResponse(verdict=verdict_pb2.Verdict(tokens=tokens))


async def test_the_largest_vocabulary_times_gamma_goes_through_by_default():
    masses = np.full(256 * 1024, 2.0**-18, dtype=np.float32)
    proposals = [target_pb2.Proposal(token_id=i, q=encode([Dense(masses)])[0]) for i in range(16)]
    request = target_pb2.VerifyRequest(session=1, block=target_pb2.Block(proposals=proposals))
    assert request.ByteSize() > 16 * 2**20
    service = Service("draftproof.v1.TargetService", target_pb2_grpc.add_TargetServiceServicer_to_server, Mirror())
    server = await start_server([service], "127.0.0.1:0")
    try:
        async with aio_channel(str(server.address)) as channel:
            stream = target_pb2_grpc.TargetServiceStub(channel).Verify(timeout=60)
            await stream.write(request)
            response = await stream.read()
            await stream.done_writing()
            assert len(response.verdict.tokens) == 16
            assert len(response.verdict.tokens[15].trace.p.masses) == 256 * 1024
            assert await stream.read() is grpc.aio.EOF
    finally:
        await server.stop(0)


@pytest.mark.parametrize(
    ("server_limits", "client_limits", "request_bytes", "response_bytes"),
    [(SMALL, LARGE, 20_000, 0), (SMALL, LARGE, 0, 20_000), (LARGE, SMALL, 0, 20_000)],
    ids=["server receives", "server sends", "client receives"],
)
async def test_past_the_limit(kind, serve, invoke, server_limits, client_limits, request_bytes, response_bytes):
    await too_large(serve, invoke, kind, server_limits, client_limits, request_bytes, response_bytes)


@pytest.mark.parametrize("kind", ["UnaryUnary", "UnaryStream", "StreamUnary"])
async def test_past_the_clients_own_limit(kind, serve, invoke):
    await too_large(serve, invoke, kind, LARGE, SMALL, 20_000, 0)


async def too_large(serve, invoke, kind, server_limits, client_limits, request_bytes, response_bytes) -> None:
    command = f"big {response_bytes}".encode().ljust(request_bytes)
    async with serve(limits=server_limits) as (server, _):
        with pytest.raises(grpc.RpcError) as caught:
            await invoke(server.address, kind, command, limits=client_limits)
        error = from_rpc_error(caught.value)
        assert type(error) is MessageTooLargeError
        assert error.metadata["setting"] == "max_message_bytes"
        assert "10000" in error.message
        # The server is none the worse.
        assert await invoke(server.address, kind, b"next", limits=client_limits) != []


async def test_an_asyncio_stream_that_writes_too_much_ends(serve):
    """gRPC says only INTERNAL here, so whoever writes to a stream measures with check_size first; yet nothing hangs."""
    async with serve(limits=LARGE) as (server, _), aio_channel(str(server.address), limits=SMALL) as channel:
        stream = channel.stream_stream("/draftproof.test.Script/StreamStream")(timeout=5)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.write(bytes(20_000))
        assert caught.value.code() is grpc.StatusCode.INTERNAL


async def test_just_below_the_limit(kind, serve, invoke):
    async with serve(limits=SMALL) as (server, _):
        responses = await invoke(server.address, kind, b"big 10000".ljust(10_000), limits=SMALL)
        assert len(responses[-1]) == 10_000
