"""Rollouts through both services: the samples that single calls give, on one computation of each prompt."""

from __future__ import annotations

import math

import pytest

from draftproof.testing.table import TableEngine
from target_service.schedule import PassLimits
from target_service.verifier import VerifierConfig
from tests.integration.services.harness import LETTERS, Kit
from tests.integration.services.test_prefix_reuse import Watched

PROMPTS = ["abcdefghij" * 8, "klmnopqrst" * 8]
N = 4


@pytest.mark.parametrize("gamma", [0, 4])
async def test_a_rollout_is_what_single_calls_give_and_reads_each_prompt_once(kit: Kit, gamma: int) -> None:
    stack = await kit.stack(
        engine=Watched(delay=0.002, slots=8), verifier=VerifierConfig(passes=PassLimits(prefill_chunk=8))
    )
    settings = {"seed": 3, "gamma": gamma, "max_tokens": 12, "ignore_eos": True}
    rollouts = await stack.client.rollout(PROMPTS, n=N, **settings)  # type: ignore[arg-type]
    assert [rollout.prompt for rollout in rollouts] == PROMPTS
    prefill = sum(len(prompt) - 1 for prompt in PROMPTS)
    assert stack.target.count("shared_prefix_tokens_total") == (N - 1) * prefill
    assert stack.engine.fed < N * prefill
    plain = await kit.stack(engine=Watched(), verifier=VerifierConfig(reuse_prefixes=False))
    for rollout in rollouts:
        assert len({c.token_ids for c in rollout.completions}) == N
        for sample in rollout.samples:
            prompt = str(rollout.prompt)
            alone = await plain.client.generate(prompt, sample_index=sample.sample_index, **settings)  # type: ignore[arg-type]
            assert sample.result().token_ids == alone.token_ids
            assert sample.result().request_key == alone.request_key


async def test_both_log_probabilities_of_every_token(kit: Kit) -> None:
    engine = TableEngine(LETTERS)
    stack = await kit.stack(engine=engine)
    (rollout,) = await stack.client.rollout(["hello"], n=3, temperature=0.7, max_tokens=12, ignore_eos=True)
    for sample in rollout.samples:
        completion = sample.result()
        text = [*completion.prompt_ids, *completion.token_ids]
        start = len(completion.prompt_ids)
        logits = engine.logits_after([text[: start + i] for i in range(12)]).double()
        for found, scaled in ((sample.raw_logprobs, logits), (sample.logprobs, logits / 0.7)):
            expected = scaled.log_softmax(-1)
            assert len(found) == 12
            for i, token in enumerate(completion.token_ids):
                assert math.isclose(found[i], expected[i, token], abs_tol=1e-4)
