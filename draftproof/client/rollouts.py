"""Many samples of many prompts: the requests they become, and their outcomes put together. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from draftproof.client.request import SamplingFields, build, integer, sampling_params
from draftproof.client.types import Completion
from draftproof.errors import InvalidArgumentError, RequestError
from draftproof.sampling.params import SamplingParams
from draftproof.v1 import generation_pb2

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]
"""Plain text, token ids, or chat messages."""

DEFAULT_CONCURRENCY = 32
MAX_SAMPLES = 2**16
MAX_CONCURRENCY = 2**10


@dataclass(frozen=True, slots=True)
class RolloutSample:
    """One sample of a prompt: a completion, or what kept it from becoming one.

    Attributes:
        sample_index: part of the key of a seeded sample.
        completion: None where it failed.
        error: None where it didn't.
    """

    sample_index: int
    completion: Completion | None = None
    error: RequestError | None = None

    def result(self) -> Completion:
        """The completion.

        Raises:
            RequestError: the sample failed.
        """
        if self.completion is None:
            assert self.error is not None
            raise self.error
        return self.completion

    @property
    def logprobs(self) -> tuple[float, ...]:
        """log p of each token, of the distribution it was drawn from. Errors as for `result`."""
        return tuple(token.logprobs.logprob for token in self.result().tokens if token.logprobs)

    @property
    def raw_logprobs(self) -> tuple[float, ...]:
        """log p of each token by the model's unmodified logits. Errors as for `result`."""
        return tuple(token.logprobs.raw_logprob for token in self.result().tokens if token.logprobs)


@dataclass(frozen=True, slots=True)
class Rollout:
    """The samples of one prompt.

    Attributes:
        prompt: as it was given.
        samples: in order of `sample_index`.
    """

    prompt: Prompt
    samples: tuple[RolloutSample, ...]

    @property
    def completions(self) -> tuple[Completion, ...]:
        """Of the samples that didn't fail."""
        return tuple(sample.completion for sample in self.samples if sample.completion is not None)

    @property
    def errors(self) -> tuple[RequestError, ...]:
        """Of those that did."""
        return tuple(sample.error for sample in self.samples if sample.error is not None)


@dataclass(frozen=True, slots=True)
class Batch:
    """What to send.

    Attributes:
        prompts: as given.
        requests: n a prompt, those of one prompt next to each other, so that they run together and share its KV.
        concurrency: most of them at a time.
    """

    prompts: Sequence[Prompt]
    requests: Sequence[generation_pb2.GenerateRequest]
    concurrency: int

    def together(self, outcomes: Sequence[Completion | RequestError]) -> list[Rollout]:
        """One rollout a prompt, from the outcomes of all requests in their order."""
        samples = [
            RolloutSample(request.sample_index, completion=outcome)
            if isinstance(outcome, Completion)
            else RolloutSample(request.sample_index, error=outcome)
            for request, outcome in zip(self.requests, outcomes, strict=True)
        ]
        n = len(samples) // max(1, len(self.prompts))
        return [Rollout(prompt, tuple(samples[i * n : (i + 1) * n])) for i, prompt in enumerate(self.prompts)]


def batch(
    prompts: Sequence[Prompt],
    *,
    n: int,
    sampling: SamplingParams | None,
    sampling_fields: SamplingFields,
    priority: int,
    concurrency: int,
) -> Batch:
    """Checks everything that can be checked without the model, for all prompts before anything is sent.

    Every token comes with its log-probabilities. A prompt that appears again goes on counting sample_index, so that
    the same seed gives it other samples.

    Raises:
        InvalidArgumentError: names the field, as prompts[2], and the limit.
        TypeError: an unknown keyword, or sampling given twice.
    """
    if isinstance(prompts, str | Mapping):
        raise InvalidArgumentError.of("prompts", "a list of prompts", prompts)
    n = integer("n", n, 1, MAX_SAMPLES)
    params = sampling_params(sampling, sampling_fields)
    if params.logprobs is None:
        params = replace(params, logprobs=0)
    seen: Counter[bytes] = Counter()
    requests = []
    for index, prompt in enumerate(prompts):
        first = _request(index, prompt, params, priority)
        name = first.SerializeToString(deterministic=True)
        for _ in range(n):
            request = generation_pb2.GenerateRequest()
            request.CopyFrom(first)
            request.sample_index = seen[name]
            seen[name] += 1
            requests.append(request)
    return Batch(prompts, requests, integer("concurrency", concurrency, 1, MAX_CONCURRENCY + 1))


def _request(index: int, prompt: Prompt, params: SamplingParams, priority: int) -> generation_pb2.GenerateRequest:
    field = f"prompts[{index}]"
    form = "prompt"
    if not isinstance(prompt, str):
        if not isinstance(prompt, Sequence) or not len(prompt):
            raise InvalidArgumentError.of(field, "text, token ids or chat messages, not empty", prompt)
        form = "messages" if isinstance(prompt[0], Mapping) else "token_ids"
    forms = {"prompt": None, "token_ids": None, "messages": None, form: prompt}
    try:
        return build(
            **forms,  # type: ignore[arg-type]
            sampling=params,
            sampling_fields={},
            sample_index=0,
            request_id=None,
            priority=priority,
            trace=None,
        )
    except InvalidArgumentError as error:
        name = error.metadata.get("field", "")
        if not name.startswith(form):
            raise
        renamed = error.message.replace(name, field + name.removeprefix(form), 1)
        raise InvalidArgumentError(
            renamed, metadata={**error.metadata, "field": field + name.removeprefix(form)}
        ) from None
