"""One generation at a server, for asyncio, chunk after chunk, and the connection of its client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self

import grpc
from tenacity import AsyncRetrying

from draftproof.client.defaults import Settings
from draftproof.client.generation import Generation
from draftproof.client.retry import Plan
from draftproof.client.rollouts import Batch
from draftproof.client.types import Chunk, Completion, Start
from draftproof.errors import RequestCancelledError, RequestError, UnavailableError
from draftproof.rpc.channel import aio_channel
from draftproof.rpc.options import RpcLimits
from draftproof.rpc.security import TlsFiles
from draftproof.rpc.status import from_rpc_error
from draftproof.v1 import generation_pb2, generation_pb2_grpc


class Connection:
    """The channel of an AsyncClient: made by the first call, because it belongs to that call's event loop."""

    def __init__(
        self, address: str, tls: TlsFiles | None, token: str | None, insecure: bool, limits: RpcLimits | None
    ) -> None:
        self._address = address
        self._tls = tls
        self._token = token
        self._insecure = insecure
        self._limits = limits
        self._channel: grpc.aio.Channel | None = None
        self._stub: generation_pb2_grpc.GenerationServiceStub | None = None
        self.closed = False

    def stub(self) -> generation_pb2_grpc.GenerationServiceStub:
        """The service.

        Raises:
            RequestCancelledError: the client is closed.
            ConfigError: the address is malformed, a file is missing, or plaintext isn't allowed.
        """
        channel = self.channel()
        if self._stub is None:
            self._stub = generation_pb2_grpc.GenerationServiceStub(channel)
        return self._stub

    def channel(self) -> grpc.aio.Channel:
        """The channel itself. Errors as for `stub`."""
        if self.closed:
            raise RequestCancelledError("the client is closed")
        if self._channel is None:
            self._channel = aio_channel(
                self._address, limits=self._limits, tls=self._tls, token=self._token, insecure=self._insecure
            )
        return self._channel

    async def aclose(self) -> None:
        """Closes the channel. Safe to call twice."""
        self.closed = True
        if self._channel is not None:
            await self._channel.close()


class AsyncStream:
    """Iterates over the chunks of one generation, one per round; connects on the first.

        async with client.stream("The sea is") as stream:
            async for chunk in stream:
                print(chunk.text, end="", flush=True)
        print(stream.completion.stats.acceptance_rate)

    If the server drains or goes away it resumes by itself, within the timeout; nothing is lost or comes twice.
    Closing ends the iteration and cancels the call on the server, also from another task.
    """

    def __init__(self, connection: Connection, generation: Generation) -> None:
        self._connection = connection
        self._generation = generation
        self._closed = asyncio.Event()
        self._call: Any = None
        self._responses: AsyncIterator[generation_pb2.GenerateResponse] | None = None
        plan = Plan(generation.pause_after)
        self._retrying = AsyncRetrying(retry=plan.retry, wait=plan.wait, sleep=self._sleep, reraise=True)

    @property
    def start(self) -> Start | None:
        """What was decided before the first token; set from the first chunk on."""
        return self._generation.start

    @property
    def completion(self) -> Completion:
        """The whole result, once the iteration is over.

        Raises:
            RuntimeError: it isn't over, failed, or was closed early.
        """
        return self._generation.result()

    async def aclose(self) -> None:
        """Cancels what is left of the generation. Safe to call twice."""
        self._closed.set()
        self._hang_up()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        chunk: Chunk | None = await self._retrying(self._next_chunk)
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _next_chunk(self) -> Chunk | None:
        """The next chunk, None at the end."""
        if self._closed.is_set() or self._generation.completion is not None:
            return None
        try:
            async for response in self._open():
                chunk = self._generation.feed(response)
                if chunk is not None:
                    return chunk
            self._call = None
            self._generation.ended()
        except grpc.RpcError as error:
            self._call = None
            if not self._closed.is_set() and self._generation.completion is None:
                raise self._translate(error) from error
        except asyncio.CancelledError:
            # grpc.aio raises it where a call was cancelled locally, too: by aclose() of this stream or of the client
            task = asyncio.current_task()
            self._hang_up()
            if task is None or task.cancelling():
                raise
            if not self._closed.is_set():
                raise RequestCancelledError("the client is closed") from None
        except BaseException:
            self._hang_up()
            raise
        return None

    def _open(self) -> AsyncIterator[generation_pb2.GenerateResponse]:
        if self._call is None or self._responses is None:
            stub = self._connection.stub()
            left = self._generation.deadline.left()
            self._call = stub.Generate(self._generation.next_request(), timeout=left)
            self._responses = aiter(self._call)
        return self._responses

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        except TimeoutError:
            return

    def _translate(self, error: grpc.RpcError) -> Exception:
        typed = self._generation.deadline.translate(from_rpc_error(error))
        if isinstance(typed, RequestCancelledError) and not self._connection.closed:
            # nobody here cancelled it: a server on its way down does so to what still runs
            return UnavailableError(f"the server cancelled the call: {typed.message}")
        return typed

    def _hang_up(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.cancel()


async def complete_all(
    connection: Connection, settings: Settings, work: Batch, timeout: float
) -> list[Completion | RequestError]:
    """Runs a batch, each request in a task; its outcomes in order. Cancellation cancels what still runs."""
    connection.stub()  # what is wrong with the connection is no sample's fault
    gate = asyncio.Semaphore(work.concurrency)

    async def complete(request: generation_pb2.GenerateRequest) -> Completion | RequestError:
        async with gate, AsyncStream(connection, settings.generation(request, timeout)) as stream:
            try:
                async for _ in stream:
                    pass
                return stream.completion
            except RequestError as error:
                return error

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(complete(request)) for request in work.requests]
    return [task.result() for task in tasks]
