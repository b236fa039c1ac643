"""From the arguments of `generate` and `stream` to one checked GenerateRequest."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from draftproof.errors import InvalidArgumentError
from draftproof.sampling.params import Rule, SamplingParams
from draftproof.v1 import generation_pb2
from draftproof.wire import params as wire_params

ROLES = ("system", "user", "assistant")
MAX_REQUEST_ID = 128
MAX_PRIORITY = 100
KEY_BYTES = 32
_UINT32_END = 2**32

Trace = int | Literal["full"] | None


class SamplingFields(TypedDict, total=False):
    """The fields of `SamplingParams` as keywords of a call."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    seed: int | None
    max_tokens: int | None
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    logprobs: int | None
    gamma: int | None
    rule: Rule | str
    lenience: float | None


def build(
    prompt: str | None,
    *,
    token_ids: Sequence[int] | None,
    messages: Sequence[Mapping[str, str]] | None,
    sampling: SamplingParams | None,
    sampling_fields: SamplingFields,
    sample_index: int,
    request_id: str | None,
    priority: int,
    trace: Trace,
) -> generation_pb2.GenerateRequest:
    """Checks everything that can be checked without the model.

    Raises:
        InvalidArgumentError: names the field and the limit.
        TypeError: an unknown keyword, or sampling given twice.
    """
    request = generation_pb2.GenerateRequest(
        sampling=wire_params.to_proto(sampling_params(sampling, sampling_fields)),
        sample_index=integer("sample_index", sample_index, 0, _UINT32_END),
        priority=integer("priority", priority, -MAX_PRIORITY, MAX_PRIORITY + 1),
    )
    _set_prompt(request, prompt, token_ids, messages)
    if request_id is not None:
        if not isinstance(request_id, str) or len(request_id) > MAX_REQUEST_ID:
            raise InvalidArgumentError.of("request_id", f"at most {MAX_REQUEST_ID} characters", request_id)
        request.request_id = request_id
    if trace is not None:
        request.trace.top_n = 0 if trace == "full" else _trace_top(trace)
        request.trace.SetInParent()
    return request


def at_prefix(request: generation_pb2.GenerateRequest, output_ids: Sequence[int]) -> generation_pb2.GenerateRequest:
    """Turns a request into the question for p after `output_ids`: one token by the target alone, p recorded in full.

    Raises:
        InvalidArgumentError: an id is no token id.
    """
    sampling = request.sampling
    # none of these is part of p; the default rule is never refused
    for name in ("seed", "stop", "stop_token_ids", "logprobs", "rule", "lenience"):
        sampling.ClearField(name)
    sampling.gamma, sampling.max_tokens, sampling.ignore_eos = 0, len(output_ids) + 1, True
    request.trace.top_n = 0
    request.trace.SetInParent()
    if output_ids:
        request.resume.request_key = secrets.token_bytes(KEY_BYTES)
        request.resume.output_ids.extend(
            integer(f"output_ids[{i}]", token, 0, _UINT32_END) for i, token in enumerate(output_ids)
        )
    return request


def sampling_params(sampling: SamplingParams | None, fields: SamplingFields) -> SamplingParams:
    """One SamplingParams from either form.

    Raises:
        InvalidArgumentError: a field is out of its range.
        TypeError: an unknown field, or both forms at once.
    """
    if sampling is not None:
        if fields:
            raise TypeError(
                f"give sampling=SamplingParams(...) or single fields ({', '.join(fields)}), not both; "
                "dataclasses.replace(sampling, ...) changes one field"
            )
        return sampling
    unknown = sorted(set(fields) - set(SamplingFields.__annotations__))
    if unknown:
        raise TypeError(f"unexpected keyword argument {unknown[0]!r}; sampling fields are {_FIELD_NAMES}")
    settings: dict[str, Any] = dict(fields)
    if isinstance(fields.get("stop"), str):
        settings["stop"] = (fields["stop"],)
    return SamplingParams(**settings)


_FIELD_NAMES = ", ".join(SamplingFields.__annotations__)


def check_timeout(timeout: float) -> float:
    """A timeout in seconds.

    Raises:
        InvalidArgumentError: not a positive finite number.
    """
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < math.inf:
        raise InvalidArgumentError.of("timeout", "seconds > 0", timeout)
    return float(timeout)


def _set_prompt(
    request: generation_pb2.GenerateRequest,
    prompt: str | None,
    token_ids: Sequence[int] | None,
    messages: Sequence[Mapping[str, str]] | None,
) -> None:
    given = sum(form is not None for form in (prompt, token_ids, messages))
    if given != 1:
        raise InvalidArgumentError(
            f"give exactly one of prompt, token_ids and messages, got {given}",
            metadata={"field": "prompt", "limit": "exactly one of prompt, token_ids and messages"},
        )
    if prompt is not None:
        if not isinstance(prompt, str):
            raise InvalidArgumentError.of("prompt", "a string", prompt)
        request.text = _unicode("prompt", prompt)
    elif token_ids is not None:
        if not len(token_ids):
            raise InvalidArgumentError.of("token_ids", "at least one token", token_ids)
        request.token_ids.ids.extend(integer(f"token_ids[{i}]", x, 0, _UINT32_END) for i, x in enumerate(token_ids))
    elif messages is not None:
        if isinstance(messages, str | Mapping) or not len(messages):
            raise InvalidArgumentError.of("messages", "a list of at least one message", messages)
        request.chat.messages.extend(_message(i, message) for i, message in enumerate(messages))


def _message(index: int, message: Mapping[str, str]) -> generation_pb2.ChatMessage:
    if not isinstance(message, Mapping) or set(message) != {"role", "content"}:
        raise InvalidArgumentError.of(f"messages[{index}]", "a mapping of role and content", message)
    if message["role"] not in ROLES:
        raise InvalidArgumentError.of(f"messages[{index}].role", f"one of {', '.join(ROLES)}", message["role"])
    if not isinstance(message["content"], str):
        raise InvalidArgumentError.of(f"messages[{index}].content", "a string", message["content"])
    content = _unicode(f"messages[{index}].content", message["content"])
    return generation_pb2.ChatMessage(role=message["role"], content=content)


def _unicode(field: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError.of(field, "valid Unicode (no lone surrogates)", text) from None
    return text


def _trace_top(trace: int | str) -> int:
    if isinstance(trace, str):
        raise InvalidArgumentError.of("trace", "an integer >= 1 or 'full'", trace)
    return integer("trace", trace, 1, _UINT32_END)


def integer(field: str, value: int, low: int, end: int) -> int:
    """A whole number in [low, end).

    Raises:
        InvalidArgumentError: it isn't one.
    """
    # numpy integers are welcome, bool isn't one
    try:
        number = value.__index__()
    except AttributeError:
        raise InvalidArgumentError.of(field, f"an integer in [{low}, {end})", value) from None
    if isinstance(value, bool) or not low <= number < end:
        raise InvalidArgumentError.of(field, f"an integer in [{low}, {end})", value)
    return number
