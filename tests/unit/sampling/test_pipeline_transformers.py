"""The pipeline against transformers' own logits processors on random inputs."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from torch import Tensor
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from draftproof.sampling.params import SamplingParams
from draftproof.sampling.pipeline import History, distributions

ROWS, PROMPT, OUTPUT = 24, 12, 6


def _theirs(logits: Tensor, ids: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """Their distributions, and the rows in which no cumulative mass comes within 1e-6 of the edge of top-p."""
    before = LogitsProcessorList(
        [
            RepetitionPenaltyLogitsProcessor(params.repetition_penalty),
            TemperatureLogitsWarper(params.temperature),
            *([TopKLogitsWarper(params.top_k)] if params.top_k else []),
        ]
    )
    after = LogitsProcessorList([TopPLogitsWarper(params.top_p), MinPLogitsWarper(params.min_p)])
    scores = before(ids, logits)
    rising = scores.double().softmax(dim=-1).sort(dim=-1).values.cumsum(dim=-1)
    clear = ((rising - (1 - params.top_p)).abs() > 1e-6).all(dim=-1) | (params.top_p == 1)
    return after(ids, scores).softmax(dim=-1), clear


SETTINGS = list(
    itertools.product((0.3, 1.0, 1.7), (0, 1, 20, 150), (0.2, 0.9, 0.99, 1.0), (0.0, 0.05, 1.0), (0.8, 1.0, 1.3))
)


@pytest.mark.parametrize("vocab_size", [50, 700])
def test_equal_distributions(vocab_size: int) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    compared = 0
    for temperature, top_k, top_p, min_p, repetition in random.Random(vocab_size).sample(SETTINGS, 90):
        params = SamplingParams(
            temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=repetition
        )
        logits = torch.randn(ROWS, vocab_size, generator=generator) * 4
        ids = torch.randint(vocab_size, (ROWS, PROMPT + OUTPUT), generator=generator)
        histories = [History(row[:PROMPT], row[PROMPT:]) for row in ids.tolist()]
        expected, clear = _theirs(logits.clone(), ids, params)
        ours = distributions(logits, [params] * ROWS, histories)
        # Whether a mass is min_p of the largest is a matter of rounding on its edge, too.
        edge = (ours / ours.amax(dim=-1, keepdim=True) / max(min_p, 1e-30) - 1).abs()
        clear &= ~((edge < 1e-5) & (ours < ours.amax(dim=-1, keepdim=True))).any(dim=-1)
        assert torch.equal(ours[clear] > 0, expected[clear] > 0), params
        torch.testing.assert_close(ours[clear], expected[clear], rtol=2e-5, atol=1e-7)
        compared += int(clear.sum())
    assert compared > 0.95 * 90 * ROWS


def test_top_k_keeps_ties_as_theirs_does() -> None:
    logits = torch.tensor([[2.0, 1.0, 1.0, 0.0, 1.0]])
    params = SamplingParams(top_k=2)
    expected, _ = _theirs(logits.clone(), torch.zeros(1, 0, dtype=torch.int64), params)
    assert (expected > 0).tolist() == [[True, True, True, False, True]]
    torch.testing.assert_close(distributions(logits, [params], [None]), expected)
