"""Rows of a ragged pass equal a cold plain forward of each sequence."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from draftproof.engine.interface import Row
from tests.tiny_gguf import needs_llamacpp

GAMMA = 4
V = 89


def ids(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(V), k=count)


def assert_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("accepted", range(GAMMA + 1))
def test_rollback_after_any_accept_length_equals_cold_recompute(any_kind, accepted):
    engine = any_kind.engine()
    prompts = [ids(20, 1), ids(9, 2), ids(31, 3)]
    proposals = [ids(GAMMA, 10 + slot) for slot in range(3)]
    engine.forward([Row(slot, 0, prompt[:-1], 0) for slot, prompt in enumerate(prompts)])

    logits = engine.forward(
        [Row(slot, len(p) - 1, [p[-1], *proposals[slot]], GAMMA + 1) for slot, p in enumerate(prompts)]
    )
    for slot, prompt in enumerate(prompts):
        expected = any_kind.plain(prompt + proposals[slot])[-GAMMA - 1 :]
        assert_close(logits[slot * (GAMMA + 1) : (slot + 1) * (GAMMA + 1)], expected)

    # Every row rolls back by its own count, then a replacement token follows.
    kept = [(accepted + slot) % (GAMMA + 1) for slot in range(3)]
    texts = [p + proposals[slot][: kept[slot]] + [7 + slot] for slot, p in enumerate(prompts)]
    logits = engine.forward([Row(slot, len(text) - 1, text[-1:], 1) for slot, text in enumerate(texts)])
    cold = any_kind.engine()
    cold.forward([Row(slot, 0, text, 0) for slot, text in enumerate(texts)])
    for slot, text in enumerate(texts):
        assert engine.length(slot) == len(text)
        assert engine.token_ids(slot) == tuple(text)
        assert_close(logits[slot : slot + 1], any_kind.plain(text)[-1:])
        for kept, expected in zip(any_kind.cache(engine, slot), any_kind.cache(cold, slot), strict=True):
            assert_close(kept, expected)


def test_one_pass_mixes_prefill_chunks_verification_and_decode(any_kind):
    engine = any_kind.engine()
    texts = [ids(90, 1), ids(30, 2), ids(12, 3), ids(40, 4)]
    engine.forward([Row(0, 0, texts[0][:10], 0), Row(1, 0, texts[1][:25], 0), Row(2, 0, texts[2][:11], 0)])
    rows = [
        Row(2, 11, texts[2][11:], 1),
        Row(0, 10, texts[0][10:], 2),
        Row(3, 0, texts[3], 0),
        Row(1, 25, texts[1][25:], 5),
    ]
    logits = engine.forward(rows)
    assert logits.shape == (8, V)
    assert_close(logits[:1], any_kind.plain(texts[2])[-1:])
    assert_close(logits[1:3], any_kind.plain(texts[0])[-2:])
    assert_close(logits[3:], any_kind.plain(texts[1])[-5:])
    last = engine.forward([Row(3, 40, [5], 1)])
    assert_close(last, any_kind.plain([*texts[3], 5])[-1:])


@pytest.mark.parametrize(
    "kind", ["llama", "mistral-window", "gpt2", pytest.param("llama.cpp llama", marks=needs_llamacpp)]
)
@pytest.mark.parametrize("seed", range(3))
def test_random_schedules(tiny, kind, seed):
    model, choose = tiny(kind), random.Random(seed)
    engine = model.engine(slots=5)
    texts: list[list[int]] = [[] for _ in range(5)]
    for _ in range(12):
        rows = []
        for slot in choose.sample(range(5), choose.randint(1, 5)):
            start = choose.choice([len(texts[slot]), choose.randint(0, len(texts[slot]))])
            fed = [choose.randrange(V) for _ in range(choose.choice([1, 1, 3, 5, 5, 70]))]
            if start + len(fed) > engine.max_context:
                start = 0
            texts[slot] = texts[slot][:start] + fed
            rows.append(Row(slot, start, fed, choose.randint(0, len(fed))))
        logits = engine.forward(rows)
        at = 0
        for row in rows:
            if row.logits:
                assert_close(logits[at : at + row.logits], model.plain(texts[row.slot])[-row.logits :])
            at += row.logits
            assert engine.token_ids(row.slot) == tuple(texts[row.slot])
        assert at == len(logits)


@pytest.mark.parametrize("chunk", [1, 7, 16, 64, 100])
def test_prefill_in_chunks_equals_prefill_at_once(any_kind, chunk):
    engine = any_kind.engine()
    text = ids(100)
    for start in range(0, 100, chunk):
        logits = engine.forward([Row(1, start, text[start : start + chunk], 1)])
    assert_close(logits, any_kind.plain(text)[-1:])


def test_lengths_far_apart_share_a_pass(tiny):
    engine = tiny("llama").engine()
    texts = [ids(120, 1), ids(3, 2), ids(60, 3), ids(4, 4)]
    engine.forward([Row(slot, 0, text[:-2], 0) for slot, text in enumerate(texts)])
    logits = engine.forward([Row(slot, len(text) - 2, text[-2:], 1) for slot, text in enumerate(texts)])
    assert_close(logits, torch.cat([tiny("llama").plain(text)[-1:] for text in texts]))


def test_padded_ids_are_cut_off_the_logits(any_kind):
    engine = any_kind.engine()
    assert engine.vocab_size == V
    assert engine.forward([Row(0, 0, [1, 2, 3], 3)]).shape == (3, V)


def test_a_row_may_want_no_logits(any_kind):
    engine = any_kind.engine()
    assert engine.forward([Row(0, 0, [1, 2, 3], 0)]).shape == (0, V)
    assert engine.forward([]).shape == (0, V)
    assert engine.length(0) == 3


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (Row(4, 0, [1], 1), "slot 4"),
        (Row(-1, 0, [1], 1), "slot -1"),
        (Row(0, 4, [1], 1), "holds 3 tokens"),
        (Row(0, -1, [1], 1), "holds 3 tokens"),
        (Row(0, 3, [], 0), "at least one token"),
        (Row(0, 3, [1] * 126, 1), "over the limit 128"),
        (Row(0, 3, [1], 2), "2 logits from 1"),
        (Row(0, 3, [1], -1), "-1 logits"),
        (Row(0, 3, [96], 1), r"token ids must be in \[0, 96\)"),
        (Row(0, 3, [-1], 1), "token ids"),
    ],
)
def test_rows_out_of_bounds_are_refused_and_change_nothing(tiny, row, message):
    engine = tiny("llama").engine()
    engine.forward([Row(0, 0, [1, 2, 3], 0)])
    with pytest.raises(ValueError, match=message):
        engine.forward([Row(1, 0, [1], 1), row])
    assert engine.token_ids(0) == (1, 2, 3)
    assert engine.length(1) == 0


def test_a_slot_may_appear_once(tiny):
    with pytest.raises(ValueError, match="slot 1 appears twice"):
        tiny("llama").engine().forward([Row(1, 0, [1], 1), Row(1, 0, [1], 1)])


def test_truncate(tiny):
    engine = tiny("llama").engine()
    engine.forward([Row(0, 0, [1, 2, 3], 0)])
    engine.truncate(0, 2)
    assert engine.token_ids(0) == (1, 2)
    with pytest.raises(ValueError, match="holds 2 tokens, can't keep 3"):
        engine.truncate(0, 3)
    with pytest.raises(ValueError, match="slot 9"):
        engine.truncate(9, 0)
    engine.truncate(0, 0)
    assert engine.length(0) == 0


@pytest.mark.parametrize("length", [0, 1, 13, 30])
def test_a_copied_beginning_equals_cold_recompute(any_kind, length):
    """Whatever the slot held before, and whatever becomes of the slot that it came from."""
    engine = any_kind.engine()
    source, ending = ids(30, 1), ids(9, 2)
    engine.forward([Row(0, 0, source, 0), Row(2, 0, ids(40, 3), 0)])
    engine.copy(0, 2, length)
    assert engine.token_ids(2) == tuple(source[:length])
    engine.forward([Row(0, 5, ids(20, 4), 0)])
    engine.truncate(0, 0)
    text = [*source[:length], *ending]
    logits = engine.forward([Row(2, length, ending, 9), Row(1, 0, ids(12, 5), 0)])
    assert_close(logits, any_kind.plain(text)[-9:])
    cold = any_kind.engine()
    cold.forward([Row(2, 0, text, 0)])
    for kept, expected in zip(any_kind.cache(engine, 2), any_kind.cache(cold, 2), strict=True):
        assert_close(kept, expected)


def test_the_source_of_a_copy_stays_as_it_was(any_kind):
    engine = any_kind.engine()
    text = ids(30, 1)
    engine.forward([Row(0, 0, text, 0)])
    engine.copy(0, 1, 20)
    engine.forward([Row(1, 18, ids(30, 2), 0)])
    engine.truncate(1, 0)
    assert_close(engine.forward([Row(0, 30, [5], 1)]), any_kind.plain([*text, 5])[-1:])


@pytest.mark.parametrize(
    ("source", "slot", "length", "message"),
    [
        (0, 0, 2, "slot 0 can't be copied to itself"),
        (0, 4, 2, "slot 4"),
        (-1, 1, 0, "slot -1"),
        (0, 1, 4, "holds 3 tokens, can't copy 4"),
        (0, 1, -1, "can't copy -1"),
    ],
)
def test_copies_out_of_bounds_are_refused_and_change_nothing(any_kind, source, slot, length, message):
    engine = any_kind.engine()
    engine.forward([Row(0, 0, [1, 2, 3], 0), Row(1, 0, [4], 0)])
    with pytest.raises(ValueError, match=message):
        engine.copy(source, slot, length)
    assert (engine.token_ids(0), engine.token_ids(1)) == ((1, 2, 3), (4,))


def test_a_full_slot_works_to_its_last_token(any_kind):
    engine = any_kind.engine(max_context=40)
    text = ids(40)
    engine.forward([Row(0, 0, text[:-1], 0)])
    assert_close(engine.forward([Row(0, 39, text[-1:], 1)]), any_kind.plain(text)[-1:])
    with pytest.raises(ValueError, match="over the limit 40"):
        engine.forward([Row(0, 40, [1], 1)])


def test_nan_of_one_request_does_not_reach_the_slot_s_next_owner(tiny):
    engine = tiny("llama").engine()
    engine.forward([Row(0, 0, ids(60, 1), 0), Row(1, 0, ids(50, 2), 0)])
    with torch.inference_mode():
        for kv in engine._store.layers.values():
            kv.values[0, :, 5:60] = float("nan")
    engine.truncate(0, 0)
    short = ids(6, 3)
    engine.forward([Row(0, 0, short[:-1], 0)])
    logits = engine.forward([Row(0, 5, short[-1:], 1), Row(1, 50, [3], 1)])
    assert_close(logits[:1], tiny("llama").plain(short)[-1:])


def test_nan_of_one_request_does_not_reach_the_owner_of_a_copy(tiny):
    engine = tiny("llama").engine()
    text = ids(6, 3)
    engine.forward([Row(0, 0, ids(60, 1), 0), Row(1, 0, text, 0), Row(2, 0, ids(80, 2), 0)])
    with torch.inference_mode():
        for kv in engine._store.layers.values():
            kv.values[0, :, :60] = float("nan")
    engine.copy(1, 0, 5)
    logits = engine.forward([Row(0, 5, text[5:], 1), Row(2, 80, [3], 1)])
    assert_close(logits[:1], tiny("llama").plain(text)[-1:])


def test_failed_pass_leaves_slots_rolled_back_to_their_start(tiny, monkeypatch: pytest.MonkeyPatch):
    engine = tiny("llama").engine()
    engine.forward([Row(0, 0, ids(10), 0)])

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(engine, "_run", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            engine.forward([Row(0, 8, [1, 2, 3], 1)])
    assert engine.token_ids(0) == tuple(ids(10)[:8])
    text = [*ids(10)[:8], 4]
    assert_close(engine.forward([Row(0, 8, [4], 1)]), tiny("llama").plain(text)[-1:])


def test_kv_budget_is_stated(tiny: Callable[..., object]):
    engine = tiny("llama").engine(slots=3, max_context=64)
    layers, kv_heads, head_dim, float32 = 2, 2, 8, 4
    assert engine.kv_bytes == 3 * 64 * layers * 2 * kv_heads * head_dim * float32
