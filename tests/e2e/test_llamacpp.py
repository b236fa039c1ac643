"""The llama.cpp backend through the stack: as target, as draft, and with a transformers draft of the same vocabulary.

The exact law and the yardstick for near-ties come from plain transformers in float64: the weights are float32 in the
GGUF file, so llama.cpp's logits differ from theirs by rounding alone.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from draftproof.sampling.params import SamplingParams
from draftproof.testing.law import target_law
from draftproof.testing.statistics import g_test
from draftproof.testing.tiny import load_plain
from tests.e2e.conftest import Models
from tests.e2e.family import ALPHA, LENGTH, PROMPT, sample
from tests.e2e.processes import Launcher, Running
from tests.e2e.test_seeds import BATCH, SETTINGS, VOCAB, Judge, run
from tests.tiny_gguf import needs_llamacpp, write_gguf

LLAMACPP = ("--backend", "llamacpp", "--slots", "16", "--max-context", "256")
LAW_VOCAB = 8
SAMPLES = 4_000
GREEDY = next(i for i, settings in enumerate(SETTINGS) if settings["temperature"] == 0.0)

pytestmark = needs_llamacpp


def target_gguf(models: Models, vocab_size: int, kind: Kind = Kind.F32) -> Path:
    """The tiny target as GGUF, in its folder."""
    folder = models.target(vocab_size)
    return write_gguf(folder, folder / f"target.{kind.name}.gguf", kind)


def start_draft(launcher: Launcher, models: Models, target: Running, drafter: str) -> Running:
    """A draft: a good one by transformers, the target itself in 8 bits by llama.cpp, or prompt lookup."""
    match drafter:
        case "transformers":
            return launcher.draft(target, models.draft(VOCAB, "good"), "--slots", "16", "--drafter", "model")
        case "llamacpp":
            return launcher.draft(target, target_gguf(models, VOCAB, Kind.Q8_0), *LLAMACPP, "--drafter", "model")
        case _:
            return launcher.draft(target, target_gguf(models, VOCAB), "--drafter", "ngram")


@pytest.mark.parametrize("drafter", ["transformers", "llamacpp", "ngram"])
async def test_greedy_texts_and_seeds(launcher: Launcher, models: Models, drafter: str) -> None:
    target = launcher.target(target_gguf(models, VOCAB), *LLAMACPP)
    draft = start_draft(launcher, models, target, drafter)
    everyone = list(range(len(BATCH)))
    reference = await run(draft, everyone, together=False)
    assert all(done.lossless for done in reference.values())
    assert sum(done.stats.accepted for done in reference.values()) > 0
    assert reference[GREEDY].target_model == "target.F32"

    judge = Judge(load_plain(models.target(VOCAB), torch.float64), reference)
    judge.same(await run(target, [GREEDY], together=False))
    shuffled = random.Random(0).sample(everyone, len(everyone))
    judge.same(await run(draft, shuffled, together=True, unseeded=8))


@pytest.mark.slow
async def test_the_law_is_the_targets(launcher: Launcher, models: Models) -> None:
    target = launcher.target(target_gguf(models, LAW_VOCAB), *LLAMACPP, "--queue-limit", "1024")
    folder = models.draft(LAW_VOCAB, "bad")
    draft = launcher.draft(target, folder, "--slots", "64", "--max-context", "64", "--drafter", "model")
    sampling = SamplingParams(temperature=1.0, gamma=2, max_tokens=LENGTH)
    counts = await sample(draft.address, sampling, SAMPLES, seed=0)
    law = target_law(models.target(LAW_VOCAB), PROMPT, sampling, LENGTH)
    assert g_test(counts, law).p_value > ALPHA
