"""How far the served p is from the same model's in float32, by context length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from rich.console import Console

from draftproof.client import AsyncClient, ServerInfo
from draftproof.engine.config import ModelConfig
from draftproof.engine.interface import Row
from draftproof.engine.loading import load_engine, load_tokenizer
from draftproof.errors import UnsupportedError

LENGTHS = (16, 64, 256, 1024, 4096)
TEXTS = 4


async def measure(
    client: AsyncClient, info: ServerInfo, prompt: Sequence[int], model: str, console: Console
) -> dict[str, Any]:
    """Total variation between p as served and p by the model in float32, at T = 1 and without filters.

    The contexts are texts that the cluster writes itself, the same each time, cut at each length.

    Args:
        prompt: what they begin with.
        model: what the target serves: name, folder or file.

    Raises:
        ModelLoadError: it can't be loaded.
        UnsupportedError: it is another model.
    """
    lengths = [length for length in LENGTHS if len(prompt) < length < info.max_context] or [len(prompt)]
    with console.status(f"loading {model} in float32"):
        config = ModelConfig(model=model, dtype="float32", slots=1, max_context=lengths[-1] + 1)
        tokenizer = load_tokenizer(config)
        engine = load_engine(config, tokenizer=tokenizer)
    if engine.vocab_size != info.target.vocab_size:
        raise UnsupportedError(
            f"{model} has {engine.vocab_size} tokens, the target {info.target.vocab_size}: another model",
            metadata={"field": "numerics"},
        )
    found: dict[int, list[float]] = {length: [] for length in lengths}
    with console.status("comparing p with float32"):
        for seed in range(TEXTS):
            written = await client.generate(
                token_ids=prompt, max_tokens=max(1, lengths[-1] - len(prompt)), ignore_eos=True, seed=seed, gamma=0
            )
            text = [*prompt, *written.token_ids]
            for length in lengths:
                served = np.asarray((await client.next_token(token_ids=text[:length])).p, dtype=np.float64)
                exact = engine.forward([Row(0, 0, text[:length], 1)])[0].double().softmax(dim=-1)
                found[length].append(0.5 * float((exact - torch.from_numpy(served)).abs().sum()))
    return {
        "model": model,
        "texts": TEXTS,
        "by_length": [
            {"tokens": length, "mean": sum(values) / len(values), "max": max(values)}
            for length, values in found.items()
        ],
    }
