"""Acceptance by position: the weights of a text against the enumerated law of blocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from draftproof.distill.corpus import Text
from draftproof.distill.measure import _by_position, acceptance
from draftproof.distill.prompts import Frame
from draftproof.distill.selftext import Writer, WritingConfig
from draftproof.distill.student import Student
from draftproof.engine.lockstep import Lockstep
from draftproof.engine.projections import trained_dtype
from draftproof.engine.student import cut
from draftproof.testing.tiny import load_plain, make_tiny_model

VOCAB = 24


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("target"), vocab_size=VOCAB, layers=2, max_context=64)


@pytest.fixture(scope="module")
def written(target: Path) -> tuple[list[Text], torch.Tensor]:
    model = Lockstep(load_plain(target), lanes=20, places=40, vocab_size=VOCAB)
    config = WritingConfig(temperatures=(1.0, 0.0), max_user=6, max_length=40)
    writer = Writer(model, Frame((1, 2), (3, 4)), frozenset(), config)
    return list(writer.write(iter(range(20)))), model.rows.to(trained_dtype())


def test_the_target_itself_is_always_accepted(target: Path, written: tuple[list[Text], torch.Tensor]) -> None:
    texts, rows = written
    student = Student(cut(load_plain(target), [0, 1]), torch.arange(VOCAB, dtype=torch.int32), True)
    for temperature in (0.0, 1.0):
        found = acceptance(student, texts, rows, temperature)
        assert found is not None
        # the student may run in bfloat16
        assert found.alpha > 0.97
        assert found.reached == pytest.approx(1.0)
        assert min(found.by_position) > 0.95
        assert found.positions == sum(len(t.token_ids) - t.answer_from for t in texts if t.temperature == temperature)
    assert acceptance(student, texts, rows, 0.5) is None


def test_a_smaller_head_is_accepted_where_it_reaches(target: Path, written: tuple[list[Text], torch.Tensor]) -> None:
    texts, rows = written
    student = Student(cut(load_plain(target), [0, 1]), torch.arange(0, VOCAB, 2, dtype=torch.int32), True)
    found = acceptance(student, texts, rows, 1.0)
    assert found is not None
    assert found.reached < 0.9
    assert found.alpha == pytest.approx(found.reached, abs=0.02)


def test_positions_are_weighted_by_the_odds_of_being_judged() -> None:
    # two kinds of context by turns of a coin, α = 0.9 and 0.3: a block survives its first position mostly in the first
    numbers = np.random.default_rng(0)
    rates, weights = [], []
    for _ in range(4000):
        alpha = 0.9 if numbers.random() < 0.5 else 0.3
        rates.append(np.full(12, alpha))
        # a token of the target was acceptable with weight 1 or not at all; their mean is α
        weights.append((numbers.random(12) < alpha).astype(float))
    found = _by_position(rates, weights)
    assert found[0] == pytest.approx(0.6, abs=0.01)
    assert found[1] == pytest.approx((0.9**2 + 0.3**2) / 1.2, abs=0.01)
    assert found[2] == pytest.approx((0.9**3 + 0.3**3) / (0.9**2 + 0.3**2), abs=0.01)


def test_short_texts_have_no_late_positions() -> None:
    found = _by_position([np.array([0.5, 0.5])], [np.ones(2)])
    assert found[:2] == (0.5, 0.5)
    assert np.isnan(found[2:]).all()
