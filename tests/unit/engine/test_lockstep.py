"""Writing in step: every lane's logits are those of the model's own forward over the lane's text."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from draftproof.engine.lockstep import Lockstep
from draftproof.errors import UnsupportedError
from draftproof.testing.tiny import Kind, load_plain, make_tiny_model

VOCAB = 40


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_lanes_that_begin_at_different_times_compute_their_own_texts(tmp_path: Path, kind: Kind) -> None:
    folder = make_tiny_model(tmp_path, kind, vocab_size=VOCAB)
    plain = load_plain(folder)
    model = Lockstep(load_plain(folder), lanes=3, places=9, vocab_size=VOCAB)
    prefix = [5, 6, 7]
    model.share(prefix)
    numbers = torch.Generator().manual_seed(0)
    texts: list[list[int]] = [[] for _ in range(3)]
    for step in range(40):
        for lane, text in enumerate(texts):
            # lane 0 fills its places, the others begin anew before
            if not text or len(text) == 9 - 2 * lane:
                texts[lane] = list(prefix)
                model.begin(lane)
        for text in texts:
            text.append(int(torch.randint(VOCAB, (1,), generator=numbers)))
        logits, states = model.step([text[-1] for text in texts])
        if step % 3:
            continue
        for lane, text in enumerate(texts):
            with torch.no_grad():
                expected = plain(input_ids=torch.tensor([text])).logits[0, -1]
            assert torch.allclose(logits[lane], expected, atol=1e-4)
            assert torch.allclose(states[lane] @ model.rows.T, expected, atol=1e-4)


def test_a_model_that_changes_its_logits_is_refused(tmp_path: Path) -> None:
    model = load_plain(make_tiny_model(tmp_path, vocab_size=VOCAB))
    model.lm_head.register_forward_hook(lambda module, fed, logits: 30 * torch.tanh(logits / 30))
    with pytest.raises(UnsupportedError, match="after the head"):
        Lockstep(model, lanes=1, places=9, vocab_size=VOCAB)


def test_a_model_that_looks_elsewhere_than_at_keys_is_refused(tmp_path: Path) -> None:
    model = load_plain(make_tiny_model(tmp_path, vocab_size=VOCAB))
    # a state that runs along the sequence
    model.model.layers[0].register_forward_hook(lambda module, fed, out: out + 0.1 * out.cumsum(1).tanh())
    with pytest.raises(UnsupportedError, match="in step"):
        Lockstep(model, lanes=1, places=9, vocab_size=VOCAB)


def test_texts_longer_than_the_attention_window_are_refused(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, "qwen2", vocab_size=VOCAB)
    for places in (8, 9):
        model = load_plain(folder)
        writing = Lockstep(model, lanes=1, places=places, vocab_size=VOCAB)
        for layer in model.model.layers:
            layer.self_attn.sliding_window = 8
        if places == 8:
            writing.step([1])
            continue
        with pytest.raises(UnsupportedError, match="window of 8"):
            writing.step([1])
