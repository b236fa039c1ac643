"""The asyncio client. `sync` mirrors it; what both do is in `generation` and `request`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self, Unpack

import grpc
from tenacity import AsyncRetrying

from draftproof.client import convert
from draftproof.client.aio_stream import AsyncStream, Connection, complete_all
from draftproof.client.defaults import DEFAULT_ADDRESS, DEFAULT_TIMEOUT, INFO_TIMEOUT, Settings
from draftproof.client.request import SamplingFields, Trace, at_prefix, build, check_timeout
from draftproof.client.retry import Attempts, Deadline, Edges, Plan, RetryPolicy
from draftproof.client.rollouts import DEFAULT_CONCURRENCY, Prompt, Rollout, batch
from draftproof.client.servers import NextToken, ServerInfo
from draftproof.client.types import Completion
from draftproof.client.weights import Running, UpdatedServer, Weights, updated, uploads
from draftproof.rpc.options import RpcLimits
from draftproof.rpc.security import TlsFiles
from draftproof.rpc.status import from_rpc_error
from draftproof.sampling.params import SamplingParams
from draftproof.v1 import generation_pb2, weights_pb2_grpc


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

    async def rollout(
        self,
        prompts: Sequence[Prompt],
        *,
        n: int = 1,
        sampling: SamplingParams | None = None,
        concurrency: int = DEFAULT_CONCURRENCY,
        priority: int = 0,
        timeout: float | None = None,
        **sampling_fields: Unpack[SamplingFields],
    ) -> list[Rollout]:
        """n samples of each prompt, when all are complete. Arguments and errors as for `Client.rollout`."""
        work = batch(
            prompts, n=n, sampling=sampling, sampling_fields=sampling_fields, priority=priority, concurrency=concurrency
        )
        seconds = self._settings.timeout if timeout is None else check_timeout(timeout)
        return work.together(await complete_all(self._connection, self._settings, work, seconds))

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
