"""Texts on disk, and their order in training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from draftproof.distill.batches import batches, collate
from draftproof.distill.corpus import Corpus, Text

HIDDEN = 4


def text(index: int, length: int, answer_from: int = 5, scored_from: int = 2) -> Text:
    numbers = np.random.default_rng(index)
    count = length - 1 - scored_from
    return Text(
        index,
        (1.0, 0.7)[index % 2],
        numbers.integers(50, size=length, dtype=np.int32),
        answer_from,
        scored_from,
        numbers.integers(1 << 14, size=(count, HIDDEN), dtype=np.uint16),
        numbers.normal(size=count).astype(np.float32),
    )


def same(one: Sequence[Text], two: Sequence[Text]) -> bool:
    return len(one) == len(two) and all(
        (a.index, a.temperature, a.answer_from, a.scored_from) == (b.index, b.temperature, b.answer_from, b.scored_from)
        and all(np.array_equal(getattr(a, name), getattr(b, name)) for name in ("token_ids", "states", "log_total"))
        for a, b in zip(one, two, strict=True)
    )


def test_shards_give_back_what_was_written(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path / "texts")
    texts = [text(i, 9 + i) for i in range(5)]
    corpus.append(texts[:2])
    corpus.append(texts[2:])
    (corpus.folder / "shard-00002.part").write_bytes(b"half a shard")
    again = Corpus(tmp_path / "texts")
    assert same([t for path in again.shards() for t in again.read(path)], texts)
    assert again.indices() == {0, 1, 2, 3, 4}
    assert again.tokens() == sum(len(t.log_total) for t in texts)


def test_batches_hold_every_text_once_within_the_limit_and_follow_the_seed() -> None:
    texts = [text(i, 8 + i * 7 % 23) for i in range(100)]
    made = batches(texts, 120, seed=3, epoch=0)
    assert sorted(i for batch in made for i in batch) == list(range(100))
    assert all(max(len(texts[i].token_ids) for i in batch) * len(batch) <= 120 for batch in made)
    assert made == batches(texts, 120, seed=3, epoch=0)
    assert made != batches(texts, 120, seed=3, epoch=1)
    assert made != batches(texts, 120, seed=4, epoch=0)


def test_collated_positions_point_at_the_token_before_their_distribution() -> None:
    texts = [text(0, 9), text(1, 12)]
    batch = collate(texts)
    assert batch.token_ids.shape == (2, 12)
    fed = batch.token_ids.flatten()[batch.kept]
    assert fed.tolist() == [*texts[0].token_ids[2:-1], *texts[1].token_ids[2:-1]]
    assert torch.equal(batch.states.view(torch.uint16), torch.from_numpy(np.concatenate([t.states for t in texts])))
    answers = collate(texts, answers_only=True)
    # position 4 speaks about token 5, the answer's first
    assert answers.token_ids.flatten()[answers.kept].tolist() == [*texts[0].token_ids[4:-1], *texts[1].token_ids[4:-1]]
    assert answers.log_total.tolist() == [*texts[0].log_total[2:], *texts[1].log_total[2:]]
