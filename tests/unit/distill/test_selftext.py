"""What the target writes: its own law, its own states, and the frame of its chat template."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from draftproof.distill.corpus import Text
from draftproof.distill.prompts import Frame, chat_frame
from draftproof.distill.selftext import Writer, WritingConfig
from draftproof.engine.config import ModelConfig
from draftproof.engine.loading import load_tokenizer
from draftproof.engine.lockstep import Lockstep
from draftproof.testing.tiny import load_plain, make_tiny_model

VOCAB = 80
FRAME = Frame((1, 2), (3, 4, 5))
EOS = frozenset({VOCAB - 1})


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("target"), vocab_size=VOCAB, max_context=128)


def lockstep(target: Path, lanes: int, places: int = 48) -> Lockstep:
    return Lockstep(load_plain(target), lanes=lanes, places=places, vocab_size=VOCAB)


def write(target: Path, count: int, lanes: int, frame: Frame = FRAME, **settings: object) -> list[Text]:
    writer = Writer(lockstep(target, lanes), frame, EOS, WritingConfig(**settings))  # type: ignore[arg-type]
    return sorted(writer.write(iter(range(count))), key=lambda text: text.index)


def test_a_text_depends_on_its_number_alone(target: Path) -> None:
    many, few = write(target, 12, 12, max_length=40), write(target, 12, 5, max_length=40)
    assert [t.token_ids.tolist() for t in many] == [t.token_ids.tolist() for t in few]
    assert [t.index for t in many] == list(range(12))
    assert many[0].token_ids.tolist() != write(target, 1, 1, seed=1)[0].token_ids.tolist()


def test_texts_are_turns_in_the_frame_and_end(target: Path) -> None:
    for text in write(target, 30, 10, openings=((), (9, 10)), max_user=8, max_length=40):
        ids = text.token_ids.tolist()
        opening = [9, 10] if text.index % 2 else []
        assert ids[: 2 + len(opening)] == [1, 2, *opening]
        assert text.scored_from == 1 + len(opening)
        assert ids[text.answer_from - 3 : text.answer_from] == [3, 4, 5]
        assert text.answer_from <= 2 + len(opening) + 8 + 3
        assert len(ids) == 40 or ids[-1] in EOS
        assert not set(ids[text.answer_from : -1]) & EOS


def test_states_and_totals_are_the_targets_own(target: Path) -> None:
    model = load_plain(target)
    head = model.get_output_embeddings().weight.detach()
    for text in write(target, 4, 4, max_length=40):
        with torch.no_grad():
            logits = model(input_ids=torch.from_numpy(text.token_ids.astype(np.int64))[None]).logits[0]
        expected = logits[text.scored_from : -1]
        states = torch.from_numpy(text.states).view(torch.bfloat16).float()
        assert torch.allclose(states @ head.T, expected, atol=0.1)
        assert np.allclose(text.log_total, expected.logsumexp(-1).numpy(), atol=1e-3)


def test_greedy_answers_are_greedy(target: Path) -> None:
    model = load_plain(target)
    for text in write(target, 4, 4, temperatures=(0.0,), max_length=40):
        with torch.no_grad():
            best = model(input_ids=torch.from_numpy(text.token_ids.astype(np.int64))[None]).logits[0].argmax(-1)
        answer = slice(text.answer_from, len(text.token_ids))
        assert text.token_ids[answer].tolist() == best[text.answer_from - 1 : -1].tolist()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_answers_follow_the_targets_law(target: Path, temperature: float) -> None:
    # without a chat template the whole text is an answer
    texts = write(target, 3000, 300, Frame((1, 2), ()), temperatures=(temperature,), max_length=3, seed=4)
    with torch.no_grad():
        logits = load_plain(target)(input_ids=torch.tensor([[1, 2]])).logits[0, -1]
    p = (logits / temperature).softmax(-1).double().numpy()
    seen = Counter(int(text.token_ids[2]) for text in texts)
    common = np.flatnonzero(p * len(texts) >= 5)
    observed = np.array([seen[int(token)] for token in common] + [sum(seen[t] for t in seen if t not in common)])
    expected = len(texts) * np.append(p[common], 1 - p[common].sum())
    statistic = float(((observed - expected) ** 2 / np.maximum(expected, 1e-9)).sum())
    assert chi2.sf(statistic, len(common)) > 1e-4


def test_the_frame_is_what_all_conversations_share(target: Path) -> None:
    tokenizer = load_tokenizer(ModelConfig(model=str(target)))
    frame = chat_frame(tokenizer)
    words = tokenizer.encode("hello")
    assert tokenizer.render_chat([{"role": "user", "content": "hello"}]) == [*frame.before, *words, *frame.after]


def test_without_a_chat_template_there_are_no_turns(tmp_path: Path) -> None:
    plain = make_tiny_model(tmp_path, vocab_size=VOCAB, chat_template=False)
    frame = chat_frame(load_tokenizer(ModelConfig(model=str(plain))))
    assert frame == Frame((VOCAB - 1,), ())
