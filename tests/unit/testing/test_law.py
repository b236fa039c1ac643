"""Enumerated laws against their definition, written out a second time."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from draftproof.sampling.params import SamplingParams
from draftproof.testing.law import joint_law, target_law
from draftproof.testing.statistics import g_test
from draftproof.testing.table import TableEngine
from draftproof.testing.tiny import load_plain, make_tiny_model


def test_plain_law_is_the_product_of_softmaxes(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, "qwen3", 8, padding=3)
    law = target_law(folder, [1, 2, 3], SamplingParams(temperature=0.7, ignore_eos=True), 2)
    assert len(law) == 64
    assert math.fsum(law.values()) == pytest.approx(1, abs=1e-12)
    model = load_plain(folder, torch.float64)
    with torch.inference_mode():
        for first, second in itertools.product(range(8), repeat=2):
            p = (model(torch.tensor([[1, 2, 3, first]])).logits[0, -2:, :8] / 0.7).softmax(-1)
            assert law[first, second] == pytest.approx((p[0, first] * p[1, second]).item(), abs=1e-12)


def test_outputs_end_with_eos_and_stop_ids(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, vocab_size=8)
    law = target_law(folder, [1], SamplingParams(stop_token_ids=(3,)), 3)
    assert math.fsum(law.values()) == pytest.approx(1, abs=1e-12)
    for output in law:
        assert not {3, 7} & set(output[:-1])
        assert len(output) == 3 or output[-1] in (3, 7)
    assert len(law) == 2 + 6 * 2 + 36 * 8


def test_greedy_has_one_outcome(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, "gpt2")
    params = SamplingParams(temperature=0.0, ignore_eos=True)
    (output,) = target_law(folder, [4, 5], params, 6)
    model = load_plain(folder)
    ids = [4, 5]
    for _ in range(6):
        ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    assert list(output) == ids[2:]


def test_penalties_see_prompt_and_output() -> None:
    """Flat logits: whatever is not flat comes from the history."""

    def flat(contexts: Sequence[Sequence[int]]) -> torch.Tensor:
        return torch.ones(len(contexts), 3)

    law = joint_law(flat, [0], SamplingParams(repetition_penalty=math.e, presence_penalty=1.0), 2)
    first = [math.exp(1 / math.e), math.e, math.e]
    assert law[1, 1] == pytest.approx(
        first[1] / sum(first) * math.exp(1 / math.e - 1) / (math.exp(1 / math.e - 1) + first[0] + first[2]), abs=1e-12
    )


def test_sampled_table_follows_its_law_and_another_does_not() -> None:
    engine = TableEngine(vocab_size=8)
    params = SamplingParams(top_k=5)
    law = joint_law(engine.logits_after, [1, 2], params, 3)
    p = {
        context: dict_of(joint_law(engine.logits_after, context, params, 1))
        for context in itertools.product(range(8), repeat=2)
    }
    generator = np.random.default_rng(5)
    counts: Counter[tuple[int, ...]] = Counter()
    for _ in range(5_000):
        ids = [1, 2]
        for _ in range(3):
            tokens, masses = p[ids[-2], ids[-1]]
            ids.append(int(generator.choice(tokens, p=masses)))
        counts[tuple(ids[2:])] += 1
    assert g_test(counts, law).p_value > 1e-4
    other = joint_law(engine.logits_after, [1, 2], SamplingParams(top_k=5, temperature=1.3), 3)
    assert g_test(counts, other).p_value < 1e-12


def dict_of(law: dict[tuple[int, ...], float]) -> tuple[list[int], list[float]]:
    return [output[0] for output in law], list(law.values())
