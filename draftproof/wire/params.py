"""Sampling settings on the wire."""

from __future__ import annotations

from draftproof.errors import InvalidArgumentError
from draftproof.sampling.params import Rule, SamplingParams
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
    "lenience",
)
_RULES = {
    Rule.TOKEN: pb.RULE_TOKEN,
    Rule.BLOCK: pb.RULE_BLOCK,
    Rule.COUPLED: pb.RULE_COUPLED,
    Rule.LENIENT: pb.RULE_LENIENT,
    Rule.TYPICAL: pb.RULE_TYPICAL,
    Rule.TREE: pb.RULE_TREE,
}
_FROM_WIRE = {number: rule for rule, number in _RULES.items()} | {pb.RULE_UNSPECIFIED: Rule.BLOCK}


def rule_number(rule: Rule) -> pb.Rule:
    """The number a rule has on the wire."""
    return _RULES[rule]


def rule_of(number: pb.Rule) -> Rule | None:
    """The rule a number stands for; None where this release doesn't know it."""
    return _FROM_WIRE.get(number)


def to_proto(params: SamplingParams) -> pb.SamplingParams:
    """The message, with defaults spelled out: the sender's values hold whatever the receiver's defaults are.

    Raises:
        InvalidArgumentError: a stop string isn't valid Unicode (a lone surrogate).
    """
    message = pb.SamplingParams(
        logit_bias=params.logit_bias,
        stop_token_ids=params.stop_token_ids,
        ignore_eos=params.ignore_eos,
        rule=_RULES[params.rule],
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
    if message.rule not in _FROM_WIRE:
        raise InvalidArgumentError.of("rule", "one that this server knows", message.rule)
    given = {name: getattr(message, name) for name in _OPTIONAL if message.HasField(name)}
    return SamplingParams(
        **given,
        logit_bias=dict(message.logit_bias),
        stop=tuple(message.stop),
        stop_token_ids=tuple(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
        rule=_FROM_WIRE[message.rule],
    )
