"""A seed makes a text: alone, among other requests, whatever their order, and after a restart of either process.

float32 on real (tiny) models, so "the same" is meant as in `tests.e2e.replay`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from draftproof import AsyncClient, Completion
from draftproof.sampling.params import SamplingParams
from draftproof.testing.tiny import load_plain
from tests.e2e.conftest import Models
from tests.e2e.family import PROMPT
from tests.e2e.processes import Launcher, Running
from tests.e2e.replay import first_difference, is_near_tie

VOCAB = 64
TOKENS = 64
TOKENS_PER_TIE = 20_000

SETTINGS: list[dict[str, Any]] = [
    {"temperature": 1.0, "gamma": 4},
    {"temperature": 0.7, "gamma": 2, "top_k": 10},
    {"temperature": 1.3, "gamma": 7, "top_p": 0.9},
    {"temperature": 1.0, "gamma": 1, "min_p": 0.05},
    {"temperature": 0.8, "gamma": 4, "repetition_penalty": 1.2, "frequency_penalty": 0.2},
    {"temperature": 1.1, "gamma": 0},
    {"temperature": 0.0, "gamma": 5},
    {"temperature": 1.0, "gamma": 3, "logit_bias": {3: 2.0, 5: -4.0}},
]
"""Eight requests that have nothing in common."""
BATCH = [
    SamplingParams(**settings, seed=100 + i, max_tokens=TOKENS, ignore_eos=True) for i, settings in enumerate(SETTINGS)
]


def prompt_of(index: int) -> list[int]:
    """Prompts of different lengths."""
    return [*PROMPT, *range(3 * index)]


async def run(server: Running, order: Sequence[int], together: bool, unseeded: int = 0) -> dict[int, Completion]:
    """The requests of the batch in some order, one after another or at once, unseeded ones among them."""
    async with AsyncClient(server.address) as client:

        async def one(index: int) -> Completion:
            return await client.generate(token_ids=prompt_of(index), sampling=BATCH[index], trace="full")

        if not together:
            return {index: await one(index) for index in order}
        noise = [
            asyncio.create_task(client.generate(token_ids=PROMPT, max_tokens=TOKENS, ignore_eos=True))
            for _ in range(unseeded)
        ]
        done = await asyncio.gather(*map(one, order))
        await asyncio.gather(*noise)
        return dict(zip(order, done, strict=True))


class Judge:
    """Compares runs with a first one and keeps count of near-ties."""

    def __init__(self, model: Any, reference: dict[int, Completion]) -> None:
        self._model = model
        self._reference = reference
        self.tokens = 0
        self.ties = 0

    def same(self, runs: dict[int, Completion]) -> None:
        """Fails where a text differs by more than a near-tie."""
        for index, run in runs.items():
            reference = self._reference[index]
            at = first_difference(reference.token_ids, run.token_ids)
            self.tokens += len(run.tokens)
            if at is None:
                assert run.text == reference.text
                continue
            self.ties += 1
            assert is_near_tie(reference, run, at, self._model, VOCAB, BATCH[index]), (index, at)
        assert self.ties <= 1 + self.tokens // TOKENS_PER_TIE


@pytest.mark.parametrize("encoding", [pytest.param("sparse", marks=pytest.mark.exact_family), "lattice"])
async def test_the_same_seed_gives_the_same_text(launcher: Launcher, models: Models, encoding: str) -> None:
    serving = ("--slots", "16")
    drafting = (*serving, "--drafter", "model", "--q-encoding", encoding, "--lattice-bits", "16")
    target = launcher.target(models.target(VOCAB), *serving)
    draft = launcher.draft(target, models.draft(VOCAB, "good"), *drafting)

    everyone = list(range(len(BATCH)))
    reference = await run(draft, everyone, together=False)
    judge = Judge(load_plain(models.target(VOCAB), torch.float64), reference)
    assert len({c.token_ids for c in reference.values()}) == len(BATCH)
    assert [c.gamma for c in reference.values()] == [settings["gamma"] for settings in SETTINGS]

    judge.same(await run(draft, everyone, together=True))
    shuffled = random.Random(0).sample(everyone, len(everyone))
    judge.same(await run(draft, shuffled, together=True, unseeded=8))

    draft.stop()
    draft = launcher.draft(target, models.draft(VOCAB, "good"), *drafting)
    judge.same(await run(draft, shuffled, together=True))

    target.stop()
    target = launcher.target(models.target(VOCAB), *serving, port=target.port)
    draft.event("target connected", after=1)
    judge.same(await run(draft, everyone, together=True))
    print(f"\n{encoding}: {judge.ties} near-ties in {judge.tokens} tokens")


async def test_another_seed_or_sample_gives_another_text(shared_launcher: Launcher, models: Models) -> None:
    target = shared_launcher.target(models.target(VOCAB))
    draft = shared_launcher.draft(target, models.draft(VOCAB, "good"), "--drafter", "model")
    async with AsyncClient(draft.address) as client:

        async def text(temperature: float, seed: int | None, sample: int = 0) -> tuple[int, ...]:
            done = await client.generate(
                token_ids=PROMPT,
                temperature=temperature,
                seed=seed,
                sample_index=sample,
                max_tokens=16,
                ignore_eos=True,
            )
            return done.token_ids

        assert len({await text(1.0, seed) for seed in range(10)}) == 10
        assert len({await text(1.0, 7, sample) for sample in range(10)}) == 10
        assert len({await text(1.0, None) for _ in range(10)}) == 10
        assert len({await text(0.0, seed) for seed in (1, 2, None)}) == 1
