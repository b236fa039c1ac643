"""Batch-invariant mode: the same bits for a position, however it came to be computed."""

from __future__ import annotations

import random

import pytest
import torch

from draftproof.engine.interface import Row

V = 89


def ids(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(V), k=count)


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt2", "mistral-window"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bit_equal_whatever_batch_chunks_blocks_and_rollbacks(tiny, kind, dtype):
    text = ids(45, 1)
    settings = {"dtype": dtype, "batch_invariant": True, "max_context": 61}
    alone = tiny(kind).engine(**settings)
    expected = alone.forward([Row(0, 0, text, len(text))])

    mixed = tiny(kind).engine(**settings)
    got = [mixed.forward([Row(3, 0, ids(50, 2), 1), Row(2, 0, text[:5], 5)])[1:]]
    got.append(mixed.forward([Row(2, 5, text[5:21], 16), Row(0, 0, ids(3, 3), 1)])[:16])
    mixed.forward([Row(2, 21, ids(9, 4), 9)])
    got.append(mixed.forward([Row(1, 0, ids(20, 5), 0), Row(2, 21, text[21:26], 5), Row(3, 50, [1], 1)])[:5])
    for position in range(26, 45):
        got.append(mixed.forward([Row(2, position, text[position : position + 1], 1)]))
    assert torch.equal(torch.cat(got), expected)
    assert mixed.token_ids(2) == tuple(text)


def test_bit_equal_after_a_copied_beginning(tiny):
    text = ids(45, 1)
    settings = {"dtype": "bfloat16", "batch_invariant": True, "max_context": 61}
    expected = tiny("llama").engine(**settings).forward([Row(0, 0, text, 20)])
    engine = tiny("llama").engine(**settings)
    engine.forward([Row(3, 0, [*text[:30], *ids(9, 2)], 0)])
    engine.copy(3, 1, 25)
    assert torch.equal(engine.forward([Row(1, 25, text[25:], 20)]), expected)


def test_equals_the_plain_forward(each_kind):
    engine = each_kind.engine(batch_invariant=True)
    text = ids(45, 1)
    got = engine.forward([Row(0, 0, text, 45)])
    torch.testing.assert_close(got, each_kind.plain(text), atol=1e-4, rtol=0)


def test_a_context_that_is_no_multiple_of_the_width_is_used_to_its_end(tiny):
    engine = tiny("gpt2").engine(batch_invariant=True, max_context=250)
    text = ids(250, 1)
    got = engine.forward([Row(0, 0, text, 1)])
    torch.testing.assert_close(got, tiny("gpt2").plain(text)[-1:], atol=1e-4, rtol=0)
