"""The asyncio client. `sync` mirrors it; what both do is in `generation` and `request`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

import grpc
from tenacity import AsyncRetrying

from draftproof.client import convert
from draftproof.client.defaults import DEFAULT_ADDRESS, DEFAULT_TIMEOUT, INFO_TIMEOUT, Settings
from draftproof.client.generation import Generation
from draftproof.client.request import SamplingFields, Trace, at_prefix, build, check_timeout
from draftproof.client.retry import Attempts, Deadline, Edges, Plan, RetryPolicy
from draftproof.client.types import Chunk, Completion, NextToken, ServerInfo, Start
from draftproof.client.weights import Running, UpdatedServer, Weights, updated, uploads
from draftproof.errors import RequestCancelledError, UnavailableError
from draftproof.rpc.channel import aio_channel
from draftproof.rpc.options import RpcLimits
from draftproof.rpc.security import TlsFiles
from draftproof.rpc.status import from_rpc_error
from draftproof.sampling.params import SamplingParams
from draftproof.v1 import generation_pb2, generation_pb2_grpc, weights_pb2_grpc


class AsyncClient:
    """Generates text at a Draftproof server, for asyncio. Belongs to the event loop of its first call.

        async with AsyncClient("127.0.0.1:7500") as client:
            print((await client.generate("The sea is", max_tokens=64)).text)

    Arguments and errors as for `Client`; a wrong address or TLS file is reported by the first call.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        tls: TlsFiles | None = None,
        token: str | None = None,
        insecure: bool = False,
        timeout: float = DEFAULT_TIMEOUT,
        retries: RetryPolicy | None = None,
        limits: RpcLimits | None = None,
    ) -> None:
        self._settings = Settings(address, check_timeout(timeout), retries or RetryPolicy())
        self._connection = Connection(address, tls, token, insecure, limits)

    @property
    def address(self) -> str:
        """The server's address."""
        return self._settings.address

    async def generate(
        self,
        prompt: str | None = None,
        *,
        token_ids: Sequence[int] | None = None,
        messages: Sequence[Mapping[str, str]] | None = None,
        sampling: SamplingParams | None = None,
        sample_index: int = 0,
        request_id: str | None = None,
        priority: int = 0,
        trace: Trace = None,
        timeout: float | None = None,
        **sampling_fields: Unpack[SamplingFields],
    ) -> Completion:
        """One continuation, when it is complete. Arguments and errors as for `stream`."""
        async with self.stream(
            prompt,
            token_ids=token_ids,
            messages=messages,
            sampling=sampling,
            sample_index=sample_index,
            request_id=request_id,
            priority=priority,
            trace=trace,
            timeout=timeout,
            **sampling_fields,
        ) as stream:
            async for _ in stream:
                pass
            return stream.completion

    def stream(
        self,
        prompt: str | None = None,
        *,
        token_ids: Sequence[int] | None = None,
        messages: Sequence[Mapping[str, str]] | None = None,
        sampling: SamplingParams | None = None,
        sample_index: int = 0,
        request_id: str | None = None,
        priority: int = 0,
        trace: Trace = None,
        timeout: float | None = None,
        **sampling_fields: Unpack[SamplingFields],
    ) -> AsyncStream:
        """One continuation, round by round. Arguments and errors as for `Client.stream`."""
        request = build(
            prompt,
            token_ids=token_ids,
            messages=messages,
            sampling=sampling,
            sampling_fields=sampling_fields,
            sample_index=sample_index,
            request_id=request_id,
            priority=priority,
            trace=trace,
        )
        return AsyncStream(self._connection, self._settings.generation(request, timeout))

    async def next_token(
        self,
        prompt: str | None = None,
        *,
        token_ids: Sequence[int] | None = None,
        messages: Sequence[Mapping[str, str]] | None = None,
        output_ids: Sequence[int] = (),
        sampling: SamplingParams | None = None,
        timeout: float | None = None,
        **sampling_fields: Unpack[SamplingFields],
    ) -> NextToken:
        """The target's law of the token after a prompt and part of an output. As for `Client.next_token`."""
        request = build(
            prompt,
            token_ids=token_ids,
            messages=messages,
            sampling=sampling,
            sampling_fields=sampling_fields,
            sample_index=0,
            request_id=None,
            priority=0,
            trace="full",
        )
        generation = self._settings.generation(at_prefix(request, output_ids), timeout)
        async with AsyncStream(self._connection, generation) as stream:
            async for _ in stream:
                pass
            return convert.next_token(stream.completion, output_ids)

    async def info(self, *, timeout: float = INFO_TIMEOUT) -> ServerInfo:
        """What runs at the address and within which limits."""
        deadline = Deadline(check_timeout(timeout), Edges().clock)
        attempts = Attempts(self._settings.retries, deadline, Edges())
        plan = Plan(attempts.pause)

        async def ask() -> ServerInfo:
            try:
                return convert.server_info(
                    await self._connection.stub().GetServerInfo(
                        generation_pb2.GetServerInfoRequest(), timeout=deadline.left()
                    )
                )
            except grpc.RpcError as error:
                raise deadline.translate(from_rpc_error(error)) from error

        return await AsyncRetrying(retry=plan.retry, wait=plan.wait, reraise=True)(ask)

    async def update_weights(
        self,
        target: Weights | None = None,
        draft: Weights | None = None,
        *,
        running: Running = "finish",
        version: int | None = None,
        upload: bool = False,
        timeout: float | None = None,
    ) -> list[UpdatedServer]:
        """Changes the weights of a server or a cluster. Arguments and errors as for `Client.update_weights`."""
        deadline = Deadline(self._settings.timeout if timeout is None else check_timeout(timeout), Edges().clock)
        stub = weights_pb2_grpc.WeightsServiceStub(self._connection.channel())
        servers: list[UpdatedServer] = []
        with uploads(target, draft, running, version, upload) as calls:
            for call in calls:
                try:
                    servers += updated(await stub.UpdateWeights(call, timeout=deadline.left()))
                except grpc.RpcError as error:
                    raise deadline.translate(from_rpc_error(error)) from error
        return servers

    async def aclose(self) -> None:
        """Cancels what still runs and closes the connection."""
        await self._connection.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


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
