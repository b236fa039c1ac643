"""Temperature 0 through the stack equals the target alone, token for token, on a real model in float32.

Whatever drafts: prompt lookup, the target's first two layers, or random weights. Equal as in `tests.e2e.replay`: the
first difference of a text, if any, is a near-tie of the two best logits in float64, at most one in 20,000 tokens.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from draftproof import AsyncClient, Completion
from draftproof.engine import embedded
from draftproof.engine.config import EMBEDDED
from draftproof.testing.tiny import load_plain
from tests.e2e.processes import Launcher, Running
from tests.e2e.replay import GAP, first_difference, top_two_gap

SERVING = ("--threads", "2", "--max-context", "512", "--slots", "20")
LAYERS = 2
TOKENS_PER_TIE = 20_000

PROMPTS = (
    "Why is the sky blue?",
    "Count from one to twenty in words.",
    "Write a Python function that reverses a list, then explain it line by line.",
    "Repeat this sentence three times: the quick brown fox jumps over the lazy dog.",
    "What is the capital of France, and what is it known for?",
    "Tell me a short story about a lighthouse keeper.",
    "Translate to French: good morning, my friend.",
    "List five animals that live in the sea.",
    "How do I make an omelette?",
    "Explain gravity to a child.",
    "Write a poem about rain.",
    "What is 17 times 23? Show your steps.",
    "Name three differences between cats and dogs.",
    "Summarise the plot of Romeo and Juliet.",
    "Give me a packing list for a week in the mountains.",
    "What does HTTP stand for?",
    "Write a JSON object that describes a book.",
    "Who was Ada Lovelace?",
    "Describe the colour red without naming it. 🌹",
    "日本の首都はどこですか？",
)


def weak_draft(folder: Path) -> Path:
    """The target's first layers under its own head."""
    made = folder / "weak"
    source = embedded.prepare()
    model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    model.model.layers = model.model.layers[:LAYERS]
    model.config.num_hidden_layers = LAYERS
    model.save_pretrained(made)
    return _with_tokenizer(source, made)


def garbage_draft(folder: Path) -> Path:
    """Random weights over the same vocabulary."""
    made = folder / "garbage"
    source = embedded.prepare()
    vocab_size = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16).config.vocab_size
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(made)
    return _with_tokenizer(source, made)


def _with_tokenizer(source: Path, made: Path) -> Path:
    for path in source.iterdir():
        if "token" in path.name or "template" in path.name:
            shutil.copy(path, made / path.name)
    return made


class Reference:
    """The target's own greedy texts, made once."""

    def __init__(self, target: Running) -> None:
        self.target = target
        self._texts: dict[int, list[Completion]] = {}

    async def texts(self, prompts: int, tokens: int) -> list[Completion]:
        """Target-only texts of the first prompts."""
        if tokens not in self._texts:
            self._texts[tokens] = await generate(self.target, prompts, tokens)
        return self._texts[tokens]


async def generate(server: Running, prompts: int, tokens: int) -> list[Completion]:
    """Greedy texts, all at once."""
    async with AsyncClient(server.address) as client:
        return await asyncio.gather(
            *(
                client.generate(
                    messages=[{"role": "user", "content": prompt}], temperature=0.0, max_tokens=tokens, ignore_eos=True
                )
                for prompt in PROMPTS[:prompts]
            )
        )


@pytest.fixture(scope="module")
def reference(shared_launcher: Launcher) -> Reference:
    """One target for all tests."""
    return Reference(shared_launcher.target(EMBEDDED, *SERVING))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("prompts", "tokens"),
    [
        pytest.param(3, 48, id="slice"),
        pytest.param(len(PROMPTS), 128, id="full", marks=pytest.mark.exact_family),
    ],
)
@pytest.mark.parametrize("drafter", ["ngram", "weak", "garbage"])
async def test_greedy_is_the_targets_own(
    shared_launcher: Launcher, reference: Reference, tmp_path: Path, drafter: str, prompts: int, tokens: int
) -> None:
    expected = await reference.texts(prompts, tokens)
    match drafter:
        case "ngram":
            model, options = EMBEDDED, ["--drafter", "ngram"]
        case "weak":
            model, options = str(weak_draft(tmp_path)), ["--drafter", "model"]
        case _:
            model, options = str(garbage_draft(tmp_path)), ["--drafter", "model"]
    draft = shared_launcher.draft(reference.target, model, *options, "--slots", "20", "--max-context", "512")
    found = await generate(draft, prompts, tokens)
    draft.stop()

    accepted, drafted = sum(c.stats.accepted for c in found), sum(c.stats.drafted for c in found)
    ties = [pair for pair in zip(expected, found, strict=True) if pair[0].token_ids != pair[1].token_ids]
    print(
        f"\n{drafter}: {accepted} of {drafted} proposals accepted, {len(ties)} near-ties in {prompts * tokens} tokens"
    )
    assert all(len(c.tokens) == tokens and c.lossless for c in found)
    assert drafted > 0
    if ties:
        exact = load_plain(embedded.prepare(), torch.float64)
        for a, b in ties:
            at = first_difference(a.token_ids, b.token_ids)
            assert at is not None
            context = [*a.prompt_ids, *a.token_ids[:at]]
            assert top_two_gap(exact, context, exact.config.vocab_size) < GAP, (a.prompt_ids, at)
    assert len(ties) <= 1 + prompts * tokens // TOKENS_PER_TIE
