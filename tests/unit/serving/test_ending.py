"""Prefixes that are complete already."""

from __future__ import annotations

from typing import Any

import pytest

from draftproof.sampling.params import SamplingParams
from draftproof.serving.ending import ended, stop_ids
from draftproof.testing.table import ByteTokenizer
from draftproof.v1.verdict_pb2 import FINISH_REASON_LENGTH, FINISH_REASON_STOP

LETTERS = ByteTokenizer(27, first_byte=ord("a"))
EOS = 26


@pytest.mark.parametrize(
    ("output", "settings", "reason"),
    [
        ("", {}, None),
        ("abc", {}, None),
        ("abc", {"max_tokens": 4}, None),
        ("abc", {"max_tokens": 3}, FINISH_REASON_LENGTH),
        ("abcd", {"max_tokens": 3}, None),
        ("abc", {"stop": ("bc",)}, FINISH_REASON_STOP),
        ("abc", {"stop": ("bcd",)}, None),
        ("abc", {"stop": ("bcd",), "max_tokens": 3}, FINISH_REASON_LENGTH),
        ("abc", {"stop": ("bc",), "max_tokens": 3}, FINISH_REASON_STOP),
        ("abc", {"stop_token_ids": (2,)}, FINISH_REASON_STOP),
        ("abc", {"stop_token_ids": (3,)}, None),
        ("abcdefg", {}, FINISH_REASON_LENGTH),
    ],
)
def test_what_ends_an_output(output: str, settings: dict[str, Any], reason: int | None) -> None:
    # the prompt of 3 leaves room for 7 in a context of 10
    assert ended(SamplingParams(**settings), LETTERS, 3, LETTERS.encode(output), 10) == reason


def test_the_end_of_sequence_ends_it_unless_ignored() -> None:
    assert ended(SamplingParams(), LETTERS, 3, [0, EOS], 10) == FINISH_REASON_STOP
    assert ended(SamplingParams(ignore_eos=True), LETTERS, 3, [0, EOS], 10) is None
    assert stop_ids(SamplingParams(stop_token_ids=(1,)), LETTERS) == {1, EOS}
    assert stop_ids(SamplingParams(stop_token_ids=(1,), ignore_eos=True), LETTERS) == {1}
