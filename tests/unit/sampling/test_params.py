"""SamplingParams: what is legal, and that an error names the field and the limit."""

from __future__ import annotations

import copy
import math
import pickle
import subprocess
import sys
from typing import Any

import pytest

from draftproof.errors import InvalidArgumentError
from draftproof.sampling.params import SamplingParams


def test_defaults_leave_the_models_distribution_alone() -> None:
    params = SamplingParams()
    assert params.temperature == 1.0
    assert not params.greedy
    assert not params.needs_history
    assert (params.top_k, params.top_p, params.min_p) == (0, 1.0, 0.0)


@pytest.mark.parametrize(
    ("field", "value", "limit"),
    [
        ("temperature", -0.1, ">= 0"),
        ("temperature", math.nan, "finite"),
        ("temperature", math.inf, "finite"),
        ("temperature", "1", "number"),
        ("temperature", True, "number"),
        ("temperature", None, "number"),
        ("temperature", 10**400, "finite"),
        ("rule", "loose", "one of token, block"),
        ("rule", None, "one of token, block"),
        ("lenience", 0.5, "lossless rule block"),
        ("top_k", -1, ">= 0"),
        ("top_k", 2**32, "at most 4294967295"),
        ("top_k", 1.0, "integer"),
        ("top_k", True, "integer"),
        ("top_p", 0.0, "(0, 1]"),
        ("top_p", 1.0000001, "(0, 1]"),
        ("top_p", math.nan, "(0, 1]"),
        ("min_p", -1e-9, "[0, 1]"),
        ("min_p", 1.1, "[0, 1]"),
        ("repetition_penalty", 0.0, "> 0"),
        ("repetition_penalty", -1.0, "> 0"),
        ("repetition_penalty", math.inf, "finite"),
        ("presence_penalty", 2.1, "[-2, 2]"),
        ("presence_penalty", -2.1, "[-2, 2]"),
        ("frequency_penalty", math.nan, "[-2, 2]"),
        ("frequency_penalty", 3, "[-2, 2]"),
        ("logit_bias", [1], "mapping"),
        ("logit_bias", {1.5: 1.0}, "integer"),
        ("logit_bias", {-1: 1.0}, ">= 0"),
        ("logit_bias", {True: 1.0}, "integer"),
        ("seed", -1, "[0, 18446744073709551615]"),
        ("seed", 2**64, "[0, 18446744073709551615]"),
        ("seed", 1.0, "integer"),
        ("max_tokens", 0, ">= 1"),
        ("max_tokens", True, "integer"),
        ("stop", "stop", "sequence of strings"),
        ("stop", ("",), "non-empty"),
        ("stop", (1,), "non-empty"),
        ("stop", ("x",) * 17, "at most 16"),
        ("stop", 3, "sequence of strings"),
        ("stop_token_ids", (-1,), ">= 0"),
        ("stop_token_ids", (1.0,), "integer"),
        ("stop_token_ids", 7, "sequence of token ids"),
        ("ignore_eos", 1, "true or false"),
        ("logprobs", 21, "[0, 20]"),
        ("logprobs", -1, "[0, 20]"),
        ("gamma", -1, ">= 0"),
        ("gamma", False, "integer"),
    ],
)
def test_out_of_range_names_field_and_limit(field: str, value: Any, limit: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        SamplingParams(**{field: value})
    assert caught.value.metadata["field"] == field
    assert limit in caught.value.metadata["limit"]
    assert field in caught.value.message


@pytest.mark.parametrize("lenience", [None, 0.0, 1.0, math.nan, "1"])
@pytest.mark.parametrize("rule", ["lenient", "typical"])
def test_a_lossy_rule_needs_its_lenience(rule: Any, lenience: Any) -> None:
    assert SamplingParams(rule=rule, lenience=0.5).rule.lossy
    with pytest.raises(InvalidArgumentError, match="lenience must be"):
        SamplingParams(rule=rule, lenience=lenience)


def test_a_seed_promises_a_text_for_the_same_blocks_or_for_any_under_the_coupled_rule() -> None:
    assert SamplingParams(seed=1).needs_same_blocks
    for free in ({"rule": "coupled", "seed": 1}, {"temperature": 0.0, "seed": 1}, {}):
        assert not SamplingParams(**free).needs_same_blocks


@pytest.mark.parametrize("bias", [100.5, -101, math.nan, math.inf, "1", True])
def test_a_bias_out_of_range_names_its_token(bias: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"logit_bias\[7\] must be .*\[-100, 100\]"):
        SamplingParams(logit_bias={3: 1.0, 7: bias})


def test_limits_themselves_are_legal() -> None:
    SamplingParams(
        temperature=0,
        top_k=2**32 - 1,
        top_p=1e-300,
        min_p=1,
        repetition_penalty=1e-9,
        presence_penalty=-2,
        frequency_penalty=2,
        logit_bias={0: -100, 2**32 - 1: 100.0},
        seed=2**64 - 1,
        max_tokens=1,
        stop=["x"] * 16,  # type: ignore[arg-type]
        stop_token_ids=[0],  # type: ignore[arg-type]
        logprobs=20,
        gamma=0,
    )


def test_values_are_normalised_and_copied() -> None:
    bias = {3: 1}
    params = SamplingParams(temperature=1, logit_bias=bias, stop=["a", "b"])  # type: ignore[arg-type]
    bias[3] = 50
    assert isinstance(params.temperature, float)
    assert params.logit_bias == {3: 1.0}
    assert params.stop == ("a", "b")
    assert params == SamplingParams(logit_bias={3: 1.0}, stop=("a", "b"))
    assert hash(params) == hash(SamplingParams(logit_bias={3: 1.0}, stop=("a", "b")))
    assert pickle.loads(pickle.dumps(params)) == params == copy.deepcopy(params)


def test_greedy_and_needs_history() -> None:
    assert SamplingParams(temperature=0).greedy
    assert not SamplingParams(temperature=1e-300).greedy
    assert SamplingParams(repetition_penalty=1.1).needs_history
    assert SamplingParams(presence_penalty=-0.1).needs_history
    assert SamplingParams(frequency_penalty=0.1).needs_history
    assert not SamplingParams(logit_bias={1: 1.0}, top_k=3).needs_history


def test_check_vocab_wants_ids_below_the_vocabulary() -> None:
    SamplingParams(logit_bias={9: 1.0}, stop_token_ids=(9,)).check_vocab(10)
    for params, field in (
        (SamplingParams(logit_bias={10: 1.0}), "logit_bias"),
        (SamplingParams(stop_token_ids=(3, 10)), "stop_token_ids"),
    ):
        with pytest.raises(InvalidArgumentError, match=r"\[0, 10\), got 10") as caught:
            params.check_vocab(10)
        assert caught.value.metadata["field"] == field


def test_importing_params_loads_neither_torch_nor_numpy() -> None:
    code = "import sys, draftproof.sampling.params; sys.exit(bool({'torch', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
