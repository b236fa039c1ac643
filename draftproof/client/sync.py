"""The blocking client. `aio` mirrors it; what both do is in `generation` and `request`."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self, Unpack

import grpc
from tenacity import Retrying, sleep_using_event

from draftproof.client import convert
from draftproof.client.defaults import DEFAULT_ADDRESS, DEFAULT_TIMEOUT, INFO_TIMEOUT, Settings
from draftproof.client.request import SamplingFields, Trace, at_prefix, build, check_timeout
from draftproof.client.retry import Attempts, Deadline, Edges, Plan, RetryPolicy
from draftproof.client.rollouts import DEFAULT_CONCURRENCY, Prompt, Rollout, batch
from draftproof.client.servers import NextToken, ServerInfo
from draftproof.client.stream import Stream, complete_all
from draftproof.client.types import Completion
from draftproof.client.weights import Running, UpdatedServer, Weights, updated, uploads
from draftproof.errors import RequestCancelledError
from draftproof.rpc.channel import channel
from draftproof.rpc.options import RpcLimits
from draftproof.rpc.security import TlsFiles
from draftproof.rpc.status import from_rpc_error
from draftproof.sampling.params import SamplingParams
from draftproof.v1 import generation_pb2, generation_pb2_grpc, weights_pb2_grpc


class Client:
    """Generates text at a Draftproof server, blocking. Threads may share one.

        with Client("127.0.0.1:7500") as client:
            print(client.generate("The sea is", max_tokens=64).text)

    Args:
        address: "host:port" of a draft server, or of a target server for target-only generation.
        tls: certificate files; `TlsFiles()` trusts the public authorities, None is plaintext.
        token: bearer token of the front door; in plaintext it is sent to loopback addresses alone.
        insecure: allows plaintext to another machine.
        timeout: seconds a request may take in all, retries and pauses included; each call may give its own.
        retries: what to do where the server is full, away or leaving.
        limits: message and keepalive limits.

    Raises:
        ConfigError: the address is malformed, a file is missing, or plaintext isn't allowed.
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
        self._channel = channel(address, limits=limits, tls=tls, token=token, insecure=insecure)
        self._stub = generation_pb2_grpc.GenerationServiceStub(self._channel)
        self._closed = threading.Event()

    @property
    def address(self) -> str:
        """The server's address."""
        return self._settings.address

    def generate(
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
        with self.stream(
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
            for _ in stream:
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
    ) -> Stream:
        """One continuation, round by round. Leaving the stream's `with` block cancels what is left of it.

        Args:
            prompt: plain text. Give exactly one of prompt, token_ids and messages.
            token_ids: ids used as they are.
            messages: mappings of `role` (system, user, assistant) and `content`, rendered with the model's template.
            sampling: settings as one object; or give its fields as keywords: `temperature=0.7, max_tokens=64`.
            sample_index: which of several samples of one prompt and seed this is.
            request_id: name in the server's logs, at most 128 characters.
            priority: which waiting request an orchestrator admits first: higher before lower, -100..100.
            trace: record p, q, u and verdict per position: the n largest masses, or "full". Changes no token.
            timeout: seconds in all; None takes the client's.

        Raises:
            InvalidArgumentError: an argument is out of its range. Everything else is raised while iterating.
        """
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
        return Stream(self._stub, self._settings.generation(request, timeout), self._closed)

    def rollout(
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
        """n samples of each prompt, when all are complete; the samples of a prompt share its KV on the target.

        Every token has log-probabilities, raw and processed, and its weights version. A sample that fails keeps its
        error; the others go on.

        Args:
            prompts: each plain text, token ids, or chat messages.
            n: samples a prompt.
            sampling: settings as one object; or give its fields as keywords. With a seed every sample still has a key
                of its own, by its sample index, which goes on where a prompt is given again.
            concurrency: most samples at a time.
            priority: as for `stream`.
            timeout: seconds a sample may take; None takes the client's.

        Raises:
            InvalidArgumentError: an argument is out of its range; nothing has been sent.
        """
        work = batch(
            prompts, n=n, sampling=sampling, sampling_fields=sampling_fields, priority=priority, concurrency=concurrency
        )
        seconds = self._settings.timeout if timeout is None else check_timeout(timeout)
        if self._closed.is_set():
            raise RequestCancelledError("the client is closed")
        return work.together(complete_all(self._stub, self._settings, work, seconds, self._closed))

    def next_token(
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
        """The target's law of the token after a prompt and the first tokens of its output: exact p of all V tokens.

        Sampling settings decide p as they do everywhere; those that don't (seed, gamma, rule, stops) are ignored.

        Args:
            output_ids: the output so far. Penalties tell it from the prompt.

        Raises:
            InvalidArgumentError: an argument is out of its range, an id outside the vocabulary.
            ContextLengthError: prompt and output leave no room for a token.
        """
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
        with Stream(self._stub, generation, self._closed) as stream:
            for _ in stream:
                pass
            return convert.next_token(stream.completion, output_ids)

    def info(self, *, timeout: float = INFO_TIMEOUT) -> ServerInfo:
        """What runs at the address and within which limits."""
        deadline = Deadline(check_timeout(timeout), Edges().clock)
        attempts = Attempts(self._settings.retries, deadline, Edges())
        plan = Plan(attempts.pause)

        def ask() -> ServerInfo:
            try:
                return convert.server_info(
                    self._stub.GetServerInfo(generation_pb2.GetServerInfoRequest(), timeout=deadline.left())
                )
            except grpc.RpcError as error:
                raise deadline.translate(from_rpc_error(error)) from error

        return Retrying(retry=plan.retry, wait=plan.wait, sleep=sleep_using_event(self._closed), reraise=True)(ask)

    def update_weights(
        self,
        target: Weights | None = None,
        draft: Weights | None = None,
        *,
        running: Running = "finish",
        version: int | None = None,
        upload: bool = False,
        timeout: float | None = None,
    ) -> list[UpdatedServer]:
        """Changes the weights of a server, or of all of a cluster; returns when they compute with the new ones.

        The model stays: shapes, tokenizer and settings must be those that run. Servers refuse it unless they were
        started with --allow-weight-updates; where one can't take the weights over it keeps its old ones.

        Args:
            target: a safetensors file, or a folder with one or several, on the servers' disks; or the bytes of one.
            draft: the same for the draft model.
            running: "finish" lets running sessions end under the old weights first, while new ones wait; "restart"
                goes on with them at once under the new weights, from what is committed. Every token says which weights
                it comes from.
            version: weights version from then on, more than the present one; None: one more.
            upload: paths are files of this machine, to be sent.
            timeout: seconds in all; None takes the client's.

        Raises:
            InvalidArgumentError: not this model's weights; metadata names the setting or tensor.
            FingerprintMismatchError: they come with another tokenizer.
            RequestError: anything else; nothing has changed.
        """
        deadline = Deadline(self._settings.timeout if timeout is None else check_timeout(timeout), Edges().clock)
        stub = weights_pb2_grpc.WeightsServiceStub(self._channel)
        servers: list[UpdatedServer] = []
        with uploads(target, draft, running, version, upload) as calls:
            for call in calls:
                try:
                    servers += updated(stub.UpdateWeights(call, timeout=deadline.left()))
                except grpc.RpcError as error:
                    raise deadline.translate(from_rpc_error(error)) from error
        return servers

    def close(self) -> None:
        """Cancels what still runs and closes the connection."""
        self._closed.set()
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
