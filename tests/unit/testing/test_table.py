"""The table engine and the byte tokenizer keep the engine's seam to the letter."""

from __future__ import annotations

import time

import pytest
import torch

from draftproof.engine.interface import Engine, Row, Tokenizer
from draftproof.errors import UnsupportedError
from draftproof.testing.table import ByteTokenizer, TableEngine


def test_keep_the_seam() -> None:
    engine: Engine = TableEngine()
    tokenizer: Tokenizer = ByteTokenizer()
    assert len(engine.weights_sha256) == 32
    assert tokenizer.vocab_size == 257


def test_rows_are_bit_equal_alone_and_batched() -> None:
    together, alone = TableEngine(slots=4), TableEngine(slots=4)
    rows = [Row(0, 0, [1, 2, 3], 3), Row(3, 0, [4], 1), Row(1, 0, [5, 6, 7, 8], 2), Row(2, 0, [9, 9], 0)]
    assert torch.equal(together.forward(rows), torch.cat([alone.forward([row]) for row in rows]))


def test_prefill_in_chunks_equals_prefill_at_once() -> None:
    whole, chunked = TableEngine(order=3), TableEngine(order=3)
    ids = [3, 1, 4, 1, 5, 9]
    pieces = [chunked.forward([Row(0, start, ids[start : start + 2], 2)]) for start in (0, 2, 4)]
    assert torch.equal(whole.forward([Row(0, 0, ids, 6)]), torch.cat(pieces))


@pytest.mark.parametrize("keep", range(5))
def test_rollback_equals_a_cold_start(keep: int) -> None:
    used, cold = TableEngine(order=3), TableEngine(order=3)
    used.forward([Row(0, 0, [1, 2, 3, 4], 0)])
    kept = [1, 2, 3, 4][:keep]
    expected = cold.forward([Row(0, 0, [*kept, 7, 8], 2)])
    assert torch.equal(used.forward([Row(0, keep, [7, 8], 2)]), expected)
    assert used.cached(0) == (*kept, 7, 8)


@pytest.mark.parametrize("length", range(5))
def test_a_copied_beginning_equals_a_cold_start(length: int) -> None:
    used, cold = TableEngine(order=3), TableEngine(order=3)
    used.forward([Row(0, 0, [1, 2, 3, 4], 0), Row(1, 0, [9, 9], 0)])
    used.copy(0, 1, length)
    used.truncate(0, 0)
    text = [*[1, 2, 3, 4][:length], 7, 8]
    assert torch.equal(used.forward([Row(1, length, [7, 8], 2)]), cold.forward([Row(0, 0, text, 2)]))
    assert used.cached(1) == tuple(text)
    wrong = (
        (0, 0, 0, "to itself"),
        (1, 0, 99, "can't copy 99"),
        (1, 0, -1, "can't copy -1"),
        (1, 8, 0, "slot 8 is not"),
    )
    for source, slot, count, said in wrong:
        with pytest.raises(ValueError, match=said):
            used.copy(source, slot, count)


def test_logits_depend_on_the_last_tokens_alone() -> None:
    engine = TableEngine(order=2)
    a, b, c, d = engine.logits_after([[5, 1, 2], [9, 9, 1, 2], [1, 3, 2], [2]])
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert not torch.equal(a, d)


def test_logits_have_the_stated_spread() -> None:
    logits = TableEngine(vocab_size=1_000, spread=1.5).logits_after([[i, 3] for i in range(100)])
    assert logits.dtype == torch.float32
    assert logits.std() == pytest.approx(1.5, rel=0.02)
    assert logits.mean().abs() < 0.02


def test_the_table_is_the_same_everywhere() -> None:
    """Frozen values: the table is part of recorded laws and seeds."""
    logits = TableEngine(vocab_size=4, seed=7).logits_after([[1, 2], []])
    assert logits.tolist() == [
        [-1.9789959192276, -0.9636361598968506, -2.5624632835388184, 1.2251964807510376],
        [-2.470179796218872, 1.732561469078064, 0.8676592707633972, 2.3403737545013428],
    ]


def test_drafts_get_worse_with_noise() -> None:
    target = TableEngine()
    contexts = [[i, j] for i in range(32) for j in range(32)]
    p = target.logits_after(contexts).softmax(-1)
    overlaps = [
        torch.minimum(p, target.draft(noise).logits_after(contexts).softmax(-1)).sum(-1).mean().item()
        for noise in (0.0, 0.2, 0.5, 1.0)
    ]
    assert overlaps[0] == pytest.approx(1)
    assert overlaps == sorted(overlaps, reverse=True)
    assert overlaps[1] > 0.75
    assert overlaps[3] < 0.5


def test_engines_of_other_tables_have_other_weights() -> None:
    digests = {
        engine.weights_sha256
        for engine in (TableEngine(), TableEngine(seed=1), TableEngine(spread=2.0), TableEngine().draft(0.1))
    }
    assert len(digests) == 4


@pytest.mark.parametrize(
    "rows",
    [
        [Row(-1, 0, [1], 1)],
        [Row(2, 0, [1], 1)],
        [Row(0, 0, [1], 1), Row(0, 0, [1], 1)],
        [Row(0, 4, [1], 1)],
        [Row(0, -1, [1], 1)],
        [Row(0, 0, [], 0)],
        [Row(0, 3, [1] * 6, 1)],
        [Row(0, 0, [1], 2)],
        [Row(0, 0, [1], -1)],
        [Row(0, 0, [32], 1)],
        [Row(1, 0, [1], 1), Row(0, 0, [-1], 1)],
    ],
)
def test_bad_rows_are_refused_whole(rows: list[Row]) -> None:
    engine = TableEngine(slots=2, max_context=8)
    engine.forward([Row(0, 0, [1, 2, 3], 0)])
    with pytest.raises(ValueError, match="slot"):
        engine.forward(rows)
    assert (engine.cached(0), engine.length(1), engine.passes) == ((1, 2, 3), 0, 1)


def test_truncate_stays_in_bounds() -> None:
    engine = TableEngine()
    engine.forward([Row(0, 0, [1, 2, 3], 0)])
    engine.truncate(0, 1)
    assert engine.cached(0) == (1,)
    for length in (-1, 2):
        with pytest.raises(ValueError, match="can't keep"):
            engine.truncate(0, length)
    engine.truncate(0, 0)
    assert engine.length(0) == 0


def test_passes_and_delay() -> None:
    engine = TableEngine(delay=0.02)
    begin = time.perf_counter()
    engine.forward([Row(0, 0, [1, 2], 1)])
    assert time.perf_counter() - begin >= 0.02
    assert (engine.passes, engine.fed) == (1, 2)


@pytest.mark.parametrize("text", ["", "plain", "naïve 🙂 漢字\n"])
def test_bytes_round_trip(text: str) -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_split_characters_show_as_replacement() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.decode(tokenizer.encode("🙂")[:3]) == "\ufffd"


def test_small_vocabularies_keep_their_bytes() -> None:
    tokenizer = ByteTokenizer(8, first_byte=ord("a"))
    assert tokenizer.encode("a cab, g!") == [0, 2, 0, 1, 6]
    assert tokenizer.decode([0, 2, 7, 1]) == "acb"
    assert [tokenizer.token(i) for i in (0, 7, 8)] == ["0x61", "<eos>", ""]
    assert tokenizer.eos_ids == {7}


def test_large_vocabularies_have_texts_of_their_own() -> None:
    tokenizer = ByteTokenizer(300)
    assert tokenizer.decode([97, 256, 298, 299]) == "a<256><298>"
    assert len({tokenizer.token(i) for i in range(300)}) == 300


def test_chat() -> None:
    messages = [{"role": "user", "content": "hi"}]
    tokenizer = ByteTokenizer()
    assert tokenizer.decode(tokenizer.render_chat(messages)) == "user: hi\nassistant: "
    with pytest.raises(UnsupportedError, match="chat template"):
        ByteTokenizer(has_chat_template=False).render_chat(messages)
