"""A GenerationService over a real socket whose every answer a test scripts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass, field

import grpc
import pytest
from grpc_status import rpc_status

from draftproof import AsyncClient, Chunk, Client, Completion
from draftproof.errors import RequestError
from draftproof.rpc.options import RpcLimits, server_options
from draftproof.rpc.status import to_status
from draftproof.v1 import fingerprint_pb2, generation_pb2_grpc, verdict_pb2
from draftproof.v1 import generation_pb2 as pb

KEY = bytes(range(32))
Answer = Callable[[pb.GenerateRequest, grpc.ServicerContext], Iterator[pb.GenerateResponse]]


@dataclass
class ScriptedServer(generation_pb2_grpc.GenerationServiceServicer):
    """Answers the n-th call with the n-th answer of the script, the last one repeated."""

    script: list[Answer] = field(default_factory=list)
    requests: list[pb.GenerateRequest] = field(default_factory=list)
    metadata: list[dict[str, str]] = field(default_factory=list)
    deadlines: list[float] = field(default_factory=list)
    arrived: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    ended: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    info_failures: list[RequestError] = field(default_factory=list)
    port: int = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def Generate(self, request, context):
        number = len(self.requests)
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        self.deadlines.append(context.time_remaining())
        context.add_callback(self.ended.release)
        self.arrived.release()
        yield from self.script[min(number, len(self.script) - 1)](request, context)

    def GetServerInfo(self, request, context):
        if self.info_failures:
            fail(context, self.info_failures.pop(0))
        return pb.GetServerInfoResponse(
            role="draft",
            version="0.1.0",
            target=fingerprint_pb2.Fingerprint(model="big", vocab_size=32, tokenizer_sha256=bytes(32)),
            draft=fingerprint_pb2.Fingerprint(model="small", vocab_size=32, tokenizer_sha256=bytes(32)),
            drafter="model",
            max_context=512,
            slots=8,
            max_gamma=16,
            default_gamma=4,
            max_message_bytes=2**26,
            chat_template=True,
            targets=["127.0.0.1:7600"],
        )


def fail(context: grpc.ServicerContext, error: RequestError) -> None:
    context.abort_with_status(rpc_status.to_status(to_status(error)))


def started(**changes: object) -> pb.GenerateResponse:
    fields = {"prompt_ids": [7, 8], "request_key": KEY, "gamma": 4, "target_model": "big", "drafter": "small"}
    return pb.GenerateResponse(started=pb.Started(**{**fields, **changes}))


def chunk(*ids: int) -> pb.GenerateResponse:
    tokens = [verdict_pb2.Token(id=i, text=f"<{i}>", source=verdict_pb2.TOKEN_SOURCE_BONUS) for i in ids]
    return pb.GenerateResponse(chunk=pb.Chunk(tokens=tokens, examined=len(ids), accepted=len(ids) - 1))


def finished() -> pb.GenerateResponse:
    return pb.GenerateResponse(finished=pb.Finished(finish_reason=verdict_pb2.FINISH_REASON_STOP, lossless=True))


def whole(*rounds: tuple[int, ...]) -> Answer:
    """An answer that runs to its end: from where the request's resume left off."""

    def answer(request: pb.GenerateRequest, context: grpc.ServicerContext) -> Iterator[pb.GenerateResponse]:
        yield started()
        done = len(request.resume.output_ids)
        for ids in rounds:
            left, done = ids[done:], max(0, done - len(ids))
            if left:
                yield chunk(*left)
        yield finished()

    return answer


def refusing(error: RequestError) -> Answer:
    """An answer that fails before its first event."""

    def answer(request: pb.GenerateRequest, context: grpc.ServicerContext) -> Iterator[pb.GenerateResponse]:
        fail(context, error)
        yield started()

    return answer


def broken(*ids: int, error: RequestError | None = None) -> Answer:
    """An answer that breaks after one chunk: by an error, or handed back where there is none."""

    def answer(request: pb.GenerateRequest, context: grpc.ServicerContext) -> Iterator[pb.GenerateResponse]:
        yield started()
        yield chunk(*ids)
        if error is not None:
            fail(context, error)
        yield pb.GenerateResponse(handed_back=pb.Resume(request_key=KEY, output_ids=ids))

    return answer


def endless(request: pb.GenerateRequest, context: grpc.ServicerContext) -> Iterator[pb.GenerateResponse]:
    """One chunk, then silence until the caller leaves."""
    yield started()
    yield chunk(1, 2)
    gone = threading.Event()
    context.add_callback(gone.set)
    gone.wait(30)


@pytest.fixture
def answers() -> dict[str, Callable[..., Answer] | Answer]:
    """The answers a script is made of."""
    return {"whole": whole, "refusing": refusing, "broken": broken, "endless": endless}


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    """A scripted server on a free port."""
    servicer = ScriptedServer()
    grpc_server = grpc.server(futures.ThreadPoolExecutor(32), options=server_options(RpcLimits()))
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(servicer, grpc_server)
    servicer.port = grpc_server.add_insecure_port("127.0.0.1:0")
    grpc_server.start()
    yield servicer
    grpc_server.stop(0).wait()


@dataclass(frozen=True)
class Face:
    """Either client, driven from blocking code."""

    name: str

    def run(
        self, address: str, prompt: str = "hi", client: dict | None = None, **call
    ) -> tuple[list[Chunk], Completion]:
        """Streams one generation to its end."""
        if self.name == "sync":
            with Client(address, **(client or {})) as sync_client, sync_client.stream(prompt, **call) as stream:
                return list(stream), stream.completion

        async def run() -> tuple[list[Chunk], Completion]:
            async with AsyncClient(address, **(client or {})) as aio, aio.stream(prompt, **call) as stream:
                return [chunk async for chunk in stream], stream.completion

        return asyncio.run(run())

    def info(self, address: str, **client):
        """Asks for the server's description."""
        if self.name == "sync":
            with Client(address, **client) as sync_client:
                return sync_client.info()

        async def run():
            async with AsyncClient(address, **client) as aio:
                return await aio.info()

        return asyncio.run(run())


@pytest.fixture(params=["sync", "asyncio"])
def face(request: pytest.FixtureRequest) -> Face:
    """Both clients, one after the other."""
    return Face(request.param)
