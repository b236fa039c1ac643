"""Sampling settings on the wire."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from draftproof.errors import InvalidArgumentError
from draftproof.sampling.params import Rule, SamplingParams
from draftproof.v1 import sampling_pb2 as pb
from draftproof.wire.params import from_proto, to_proto

UINT32 = st.integers(0, 2**32 - 1)
ANY_FLOAT = st.one_of(st.floats(), st.sampled_from([0.0, 1.0, -0.0, 5e-324, float("nan"), float("inf")]))

RULES = st.tuples(st.sampled_from(Rule), st.floats(0, 1, exclude_min=True, exclude_max=True)).map(
    lambda pair: {"rule": pair[0], "lenience": pair[1] if pair[0].lossy else None}
)

PARAMS = st.builds(
    lambda rule, **fields: SamplingParams(**rule, **fields),
    rule=RULES,
    temperature=st.floats(0, 100),
    top_k=UINT32,
    top_p=st.floats(0, 1, exclude_min=True),
    min_p=st.floats(0, 1),
    repetition_penalty=st.floats(0.01, 10),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    logit_bias=st.dictionaries(UINT32, st.floats(-100, 100), max_size=4),
    seed=st.none() | st.integers(0, 2**64 - 1),
    max_tokens=st.none() | st.integers(1, 2**32 - 1),
    stop=st.lists(st.text(min_size=1), max_size=4).map(tuple),
    stop_token_ids=st.lists(UINT32, max_size=4).map(tuple),
    ignore_eos=st.booleans(),
    logprobs=st.none() | st.integers(0, 20),
    gamma=st.none() | UINT32,
)

MESSAGES = st.builds(
    pb.SamplingParams,
    **dict.fromkeys(
        (
            "temperature",
            "top_p",
            "min_p",
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
            "lenience",
        ),
        st.none() | ANY_FLOAT,
    ),
    rule=st.integers(0, 7),
    **dict.fromkeys(("top_k", "max_tokens", "logprobs", "gamma"), st.none() | UINT32),
    seed=st.none() | st.integers(0, 2**64 - 1),
    logit_bias=st.dictionaries(UINT32, ANY_FLOAT, max_size=3),
    stop=st.lists(st.text(), max_size=18),
    stop_token_ids=st.lists(UINT32, max_size=4),
    ignore_eos=st.booleans(),
)


@given(PARAMS)
def test_round_trip(params: SamplingParams) -> None:
    sent = to_proto(params).SerializeToString()
    assert from_proto(pb.SamplingParams.FromString(sent)) == params


def test_unset_means_the_documented_default_not_greedy() -> None:
    assert from_proto(pb.SamplingParams()) == SamplingParams()
    assert from_proto(pb.SamplingParams()).temperature == 1.0


def test_a_set_zero_is_not_an_unset_field() -> None:
    params = from_proto(pb.SamplingParams(temperature=0.0, seed=0, logprobs=0, gamma=0))
    assert (params.temperature, params.seed, params.logprobs, params.gamma) == (0.0, 0, 0, 0)
    assert to_proto(SamplingParams()).HasField("temperature")
    assert not to_proto(SamplingParams()).HasField("seed")


@given(MESSAGES)
def test_any_message_is_settings_or_refused(message: pb.SamplingParams) -> None:
    try:
        params = from_proto(message)
    except InvalidArgumentError:
        return
    assert from_proto(to_proto(params)) == params


@given(st.binary(max_size=100))
def test_any_bytes_are_settings_or_refused(data: bytes) -> None:
    try:
        params = from_proto(pb.SamplingParams.FromString(data))
    except (DecodeError, InvalidArgumentError):
        return
    assert from_proto(to_proto(params)) == params


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (pb.SamplingParams(temperature=float("nan")), "temperature"),
        (pb.SamplingParams(top_p=0.0), "top_p"),
        (pb.SamplingParams(max_tokens=0), "max_tokens"),
        (pb.SamplingParams(stop=[""]), "stop"),
        (pb.SamplingParams(logprobs=21), "logprobs"),
        (pb.SamplingParams(rule=7), "rule"),  # type: ignore[arg-type]
        (pb.SamplingParams(rule=pb.RULE_LENIENT), "lenience"),
        (pb.SamplingParams(rule=pb.RULE_LENIENT, lenience=1.0), "lenience"),
        (pb.SamplingParams(rule=pb.RULE_BLOCK, lenience=0.5), "lenience"),
    ],
)
def test_the_field_is_named(message: pb.SamplingParams, field: str) -> None:
    with pytest.raises(InvalidArgumentError, match=field):
        from_proto(message)


def test_a_stop_string_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="stop"):
        to_proto(SamplingParams(stop=("\ud800",)))
