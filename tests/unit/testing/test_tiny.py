"""Tiny models load like real ones and have distributions worth testing with."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoTokenizer

from draftproof.testing.tiny import KINDS, Kind, load_plain, make_draft_of, make_tiny_model, real_vocabulary


def last_p(model: Any, contexts: Tensor, vocab_size: int) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = model(contexts).logits[:, -1, :vocab_size]
    return logits.softmax(-1)


def overlap(p: Tensor, q: Tensor) -> float:
    return torch.minimum(p, q).sum(-1).mean().item()


def contexts(vocab_size: int, rows: int = 64, length: int = 9) -> Tensor:
    return torch.randint(vocab_size, (rows, length), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocab_size", [8, 32, 300, 400])
def test_vocabulary_is_as_asked(tmp_path: Path, kind: Kind, vocab_size: int) -> None:
    make_tiny_model(tmp_path, kind, vocab_size, padding=5)
    assert real_vocabulary(tmp_path) == (vocab_size, vocab_size - 1)
    model = load_plain(tmp_path)
    assert model.config.vocab_size == vocab_size + 5
    assert model.config.eos_token_id == vocab_size - 1
    assert model.config.model_type == kind


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocab_size", [8, 32])
def test_distributions_are_spread_and_depend_on_the_context(tmp_path: Path, kind: Kind, vocab_size: int) -> None:
    model = load_plain(make_tiny_model(tmp_path, kind, vocab_size))
    first = contexts(vocab_size)
    p = last_p(model, first, vocab_size)
    entropy = -(p * p.log()).sum(-1).mean().item()
    assert 0.5 < entropy / math.log(vocab_size) < 0.9
    earlier = first.clone()
    earlier[:, :-1] = first.flip(0)[:, :-1]
    assert overlap(p, last_p(model, earlier, vocab_size)) < 0.8
    oldest = first.clone()
    oldest[:, 0] = (first[:, 0] + 1) % vocab_size
    assert overlap(p, last_p(model, oldest, vocab_size)) < 0.95


def test_same_seed_same_weights(tmp_path: Path) -> None:
    files = [
        make_tiny_model(tmp_path / name, seed=seed) / "model.safetensors"
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    a, b, c = (path.read_bytes() for path in files)
    assert a == b
    assert a != c


@pytest.mark.parametrize("kind", KINDS)
def test_drafts_of_every_quality(tmp_path: Path, kind: Kind) -> None:
    target = make_tiny_model(tmp_path / "target", kind)
    rows = contexts(32)
    p = last_p(load_plain(target), rows, 32)
    overlaps = [
        overlap(p, last_p(load_plain(make_draft_of(target, tmp_path / f"{noise}", noise)), rows, 32))
        for noise in (0.0, 0.03, 0.3)
    ]
    garbage = make_tiny_model(tmp_path / "garbage", kind, seed=99)
    overlaps.append(overlap(p, last_p(load_plain(garbage), rows, 32)))
    assert overlaps[0] == pytest.approx(1, abs=1e-6)
    assert overlaps == sorted(overlaps, reverse=True)
    assert overlaps[1] > 0.8
    assert overlaps[2] < 0.6


def test_a_draft_shares_the_tokenizer(tmp_path: Path) -> None:
    target = make_tiny_model(tmp_path / "target", vocab_size=400)
    draft = make_draft_of(target, tmp_path / "draft", 0.1)
    a, b = AutoTokenizer.from_pretrained(target), AutoTokenizer.from_pretrained(draft)
    assert a.get_vocab() == b.get_vocab()
    assert a.chat_template == b.chat_template


@pytest.mark.parametrize("kind", KINDS)
def test_characters_beyond_ascii_split(tmp_path: Path, kind: Kind) -> None:
    tokenizer = AutoTokenizer.from_pretrained(make_tiny_model(tmp_path, kind, 400))
    text = "the cat says 🙂 漢字\n"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert len(tokenizer.encode("🙂")) == 4
    assert tokenizer.decode(tokenizer.encode("🙂")[:2]) == "\ufffd"
    assert len(tokenizer.encode(" cat")) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_small_vocabularies_are_letters(tmp_path: Path, kind: Kind) -> None:
    tokenizer = AutoTokenizer.from_pretrained(make_tiny_model(tmp_path, kind, 32))
    assert tokenizer.encode("abz .🙂") == [0, 1, 25, 26, 27]
    assert tokenizer.decode([0, 1, 25, 26, 27, 31], skip_special_tokens=True) == "abz ."


@pytest.mark.parametrize("vocab_size", [8, 400])
def test_chat_template(tmp_path: Path, vocab_size: int) -> None:
    messages = [{"role": "user", "content": "abc"}]
    tokenizer = AutoTokenizer.from_pretrained(make_tiny_model(tmp_path / "with", vocab_size=vocab_size))
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert tokenizer.decode(ids) == ("abca" if vocab_size == 8 else "<user>abc\n<assistant>")
    bare = AutoTokenizer.from_pretrained(make_tiny_model(tmp_path / "without", chat_template=False))
    assert bare.chat_template is None


def test_vocabularies_of_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 3"):
        make_tiny_model(tmp_path, vocab_size=2)
