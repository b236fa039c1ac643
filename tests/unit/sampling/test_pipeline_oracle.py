"""The pipeline against a slow oracle on small vocabularies full of ties, and the mistakes this comparison catches."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch

from draftproof.sampling import filters, pipeline
from draftproof.sampling.params import SamplingParams
from draftproof.sampling.pipeline import History

from . import oracle


@dataclass(frozen=True)
class Case:
    logits: list[float]
    params: SamplingParams
    prompt: list[int]
    output: list[int]


def _case(rng: random.Random) -> Case:
    size = rng.randint(1, 12)
    tied = rng.random() < 0.5
    # Quarters are exact in every dtype, so that equal logits stay equal.
    logits = [rng.randint(-8, 8) / 4 if tied else rng.gauss(0, 2) for _ in range(size)]
    return Case(logits, _params(rng, size), *([rng.randrange(size) for _ in range(rng.randint(0, 6))] for _ in "po"))


def _params(rng: random.Random, size: int) -> SamplingParams:
    def maybe(value: float, default: float, chance: float = 0.4) -> float:
        return value if rng.random() < chance else default

    return SamplingParams(
        temperature=rng.choice([0.0, 0.25, 0.5, 1.0, 1.0, 1.5, 4.0]),
        top_k=int(maybe(rng.randint(1, size + 1), 0)),
        top_p=maybe(rng.uniform(0.05, 0.999), 1.0),
        min_p=maybe(rng.uniform(0.01, 0.9), 0.0, 0.3),
        repetition_penalty=maybe(rng.choice([0.5, 1.25, 2.0]), 1.0),
        presence_penalty=maybe(rng.choice([-2.0, 0.5, 1.0]), 0.0),
        frequency_penalty=maybe(rng.choice([-1.0, 0.25, 2.0]), 0.0),
        logit_bias={rng.randrange(size): rng.choice([-100.0, -1.0, 0.5, 3.0]) for _ in range(rng.choice([0, 0, 1, 3]))},
    )


def _cases(seed: int, n: int) -> list[Case]:
    rng = random.Random(seed)
    return [_case(rng) for _ in range(n)]


def _distribution(case: Case) -> list[float]:
    history = History(case.prompt, case.output)
    logits = torch.tensor(case.logits, dtype=torch.float64)
    return pipeline.distribution(logits, case.params, history).tolist()


def _same(ours: list[float], theirs: list[float], tolerance: float = 1e-12) -> bool:
    return all(abs(a - b) <= tolerance and (a == 0) == (b == 0) for a, b in zip(ours, theirs, strict=True))


def test_agrees_with_the_oracle() -> None:
    compared = 0
    for case in _cases(seed=1, n=600):
        expected, margin = oracle.distribution(case.logits, case.params, case.prompt, case.output)
        if margin > 1e-6:
            compared += 1
            assert _same(_distribution(case), expected), case
    assert compared > 550


@pytest.mark.parametrize("candidates", [(1,), (2, 4), (3,), (1, 2, 3, 4, 5, 6)])
def test_agrees_when_the_first_look_is_too_narrow(candidates: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "_CANDIDATES", candidates)
    for case in _cases(seed=2, n=300):
        expected, margin = oracle.distribution(case.logits, case.params, case.prompt, case.output)
        if margin > 1e-6:
            assert _same(_distribution(case), expected), case


@pytest.mark.parametrize("mistake", oracle.MISTAKES)
def test_the_comparison_catches(mistake: str) -> None:
    for case in _cases(seed=1, n=600):
        right, margin = oracle.distribution(case.logits, case.params, case.prompt, case.output)
        wrong, _ = oracle.distribution(case.logits, case.params, case.prompt, case.output, mistake)
        if margin > 1e-6 and not _same(right, wrong):
            assert not _same(_distribution(case), wrong)
            return
    pytest.fail("no case tells this mistake from the rule")


def test_float32_agrees_up_to_its_rounding() -> None:
    cases = _cases(seed=3, n=300)
    for case in cases:
        expected, margin = oracle.distribution(case.logits, case.params, case.prompt, case.output)
        if margin < 1e-4 or any(abs(b) == 100 for b in case.params.logit_bias.values()):
            continue
        ours = pipeline.distribution(torch.tensor(case.logits), case.params, History(case.prompt, case.output))
        assert ours.dtype == torch.float32
        assert _same(ours.tolist(), expected, 1e-5), case
