"""Sampling settings on the wire."""

from __future__ import annotations

from draftproof.errors import InvalidArgumentError
from draftproof.sampling.params import SamplingParams
from draftproof.v1 import sampling_pb2 as pb

# Fields with presence: unset on the wire is the default of SamplingParams.
_OPTIONAL = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "max_tokens",
    "logprobs",
    "gamma",
)


def to_proto(params: SamplingParams) -> pb.SamplingParams:
    """The message, with defaults spelled out: the sender's values hold whatever the receiver's defaults are.

    Raises:
        InvalidArgumentError: a stop string isn't valid Unicode (a lone surrogate).
    """
    message = pb.SamplingParams(
        logit_bias=params.logit_bias, stop_token_ids=params.stop_token_ids, ignore_eos=params.ignore_eos
    )
    for name in _OPTIONAL:
        value = getattr(params, name)
        if value is not None:
            setattr(message, name, value)
    try:
        message.stop.extend(params.stop)
    except UnicodeEncodeError as error:
        raise InvalidArgumentError.of("stop", "valid Unicode", error.object) from error
    return message


def from_proto(message: pb.SamplingParams) -> SamplingParams:
    """The settings a message stands for.

    Raises:
        InvalidArgumentError: a field is out of its range.
    """
    given = {name: getattr(message, name) for name in _OPTIONAL if message.HasField(name)}
    return SamplingParams(
        **given,
        logit_bias=dict(message.logit_bias),
        stop=tuple(message.stop),
        stop_token_ids=tuple(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
    )
