"""p at a prefix, asked of a whole cluster, is what the pipeline makes of the target's logits there."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from draftproof import Client
from draftproof.errors import ContextLengthError, InvalidArgumentError
from draftproof.sampling.params import SamplingParams
from draftproof.sampling.pipeline import History, distributions
from tests.integration.orchestrator.conftest import Build
from tests.integration.services.harness import LETTERS, table

PROMPT, OUTPUT = (3, 1, 4, 1), (5, 9, 5)
SETTINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7, "top_p": 0.8, "seed": 3, "gamma": 5, "stop": ("a",), "rule": "token"},
    {"repetition_penalty": 1.4, "presence_penalty": 0.5, "frequency_penalty": 0.7, "logit_bias": {2: 3.0}},
    {"stop_token_ids": OUTPUT[:1], "min_p": 0.1, "logprobs": 2, "rule": "lenient", "lenience": 0.5},
]


def expected(params: SamplingParams) -> np.ndarray:
    logits = table().logits_after([[*PROMPT, *OUTPUT]]).double()
    return distributions(logits, [params], [History(PROMPT, OUTPUT)])[0].numpy()


async def test_p_at_a_prefix(cluster: Build) -> None:
    made = await cluster()
    async with made.client() as client:
        for fields in SETTINGS:
            found = await client.next_token(token_ids=PROMPT, output_ids=OUTPUT, **fields)
            assert np.abs(np.array(found.p) - expected(SamplingParams(**fields))).max() < 1e-6
            assert (found.prompt_ids, found.output_ids) == (PROMPT, OUTPUT)
        # the output is no part of the prompt: penalties tell
        as_prompt = await client.next_token(token_ids=(*PROMPT, *OUTPUT), **SETTINGS[2])
        assert np.abs(np.array(as_prompt.p) - expected(SamplingParams(**SETTINGS[2]))).max() > 1e-3
        with pytest.raises(InvalidArgumentError, match=str(LETTERS)):
            await client.next_token(token_ids=PROMPT, output_ids=(LETTERS,))
        with pytest.raises(ContextLengthError, match="256 tokens"):
            await client.next_token(token_ids=PROMPT, output_ids=(1,) * 252)
        with pytest.raises(InvalidArgumentError, match=r"output_ids\[0\]"):
            await client.next_token(token_ids=PROMPT, output_ids=(-1,))
    with Client(made.address) as blocking:
        same = await asyncio.to_thread(blocking.next_token, token_ids=PROMPT, output_ids=OUTPUT)
        assert np.abs(np.array(same.p) - expected(SamplingParams())).max() < 1e-6
