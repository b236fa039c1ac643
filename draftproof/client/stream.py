"""One generation at a server, blocking, chunk after chunk. `aio_stream` mirrors it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Any, Self

import grpc
from tenacity import Retrying, sleep_using_event

from draftproof.client.defaults import Settings
from draftproof.client.generation import Generation
from draftproof.client.retry import Plan
from draftproof.client.rollouts import Batch
from draftproof.client.types import Chunk, Completion, Start
from draftproof.errors import RequestCancelledError, RequestError, UnavailableError
from draftproof.rpc.status import from_rpc_error
from draftproof.v1 import generation_pb2, generation_pb2_grpc


class Stream:
    """Iterates over the chunks of one generation, one per round; connects on the first.

        with client.stream("The sea is") as stream:
            for chunk in stream:
                print(chunk.text, end="", flush=True)
        print(stream.completion.stats.acceptance_rate)

    If the server drains or goes away it resumes by itself, within the timeout; nothing is lost or comes twice.
    Closing ends the iteration and cancels the call on the server, also from another thread.
    """

    def __init__(
        self,
        stub: generation_pb2_grpc.GenerationServiceStub,
        generation: Generation,
        client_closed: threading.Event,
    ) -> None:
        self._stub = stub
        self._generation = generation
        self._client_closed = client_closed
        self._closed = threading.Event()
        self._call: Any = None
        plan = Plan(generation.pause_after)
        self._retrying = Retrying(retry=plan.retry, wait=plan.wait, sleep=sleep_using_event(self._closed), reraise=True)

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

    def close(self) -> None:
        """Cancels what is left of the generation. Safe to call twice."""
        self._closed.set()
        self._hang_up()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        chunk = self._retrying(self._next_chunk)
        if chunk is None:
            raise StopIteration
        return chunk

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _next_chunk(self) -> Chunk | None:
        """The next chunk, None at the end."""
        if self._closed.is_set() or self._generation.completion is not None:
            return None
        try:
            for response in self._responses():
                chunk = self._generation.feed(response)
                if chunk is not None:
                    return chunk
            self._call = None
            self._generation.ended()
        except grpc.RpcError as error:
            self._call = None
            if not self._closed.is_set() and self._generation.completion is None:
                raise self._translate(error) from error
        except BaseException:
            self._hang_up()
            raise
        return None

    def _responses(self) -> Iterator[generation_pb2.GenerateResponse]:
        if self._call is None:
            if self._client_closed.is_set():
                raise RequestCancelledError("the client is closed")
            left = self._generation.deadline.left()
            self._call = self._stub.Generate(self._generation.next_request(), timeout=left)
            if self._closed.is_set():
                self._call.cancel()
        responses: Iterator[generation_pb2.GenerateResponse] = self._call
        return responses

    def _translate(self, error: grpc.RpcError) -> Exception:
        typed = self._generation.deadline.translate(from_rpc_error(error))
        if isinstance(typed, RequestCancelledError) and not self._client_closed.is_set():
            # nobody here cancelled it: a server on its way down does so to what still runs
            return UnavailableError(f"the server cancelled the call: {typed.message}")
        return typed

    def _hang_up(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            with contextlib.suppress(grpc.RpcError):
                call.cancel()


def complete_all(
    stub: generation_pb2_grpc.GenerationServiceStub,
    settings: Settings,
    work: Batch,
    timeout: float,
    client_closed: threading.Event,
) -> list[Completion | RequestError]:
    """Runs a batch, each request in a thread; its outcomes in order. Whatever interrupts it cancels what still runs."""
    running: set[Stream] = set()
    stopped = threading.Event()

    def complete(request: generation_pb2.GenerateRequest) -> Completion | RequestError:
        with Stream(stub, settings.generation(request, timeout), client_closed) as stream:
            running.add(stream)
            if stopped.is_set():
                stream.close()
            try:
                for _ in stream:
                    pass
                return stream.completion
            except RequestError as error:
                return error
            finally:
                running.discard(stream)

    with ThreadPoolExecutor(work.concurrency, thread_name_prefix="rollout") as pool:
        futures = [pool.submit(complete, request) for request in work.requests]
        try:
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
            return [future.result() for future in futures]
        except BaseException:
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            for stream in list(running):
                stream.close()
            raise
