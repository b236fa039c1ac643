"""llama.cpp by its own Python package on the embedded model's GGUF file: plain, and with its prompt lookup."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from llama_cpp import Llama
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
from transformers import AutoTokenizer

from bench.cluster import chat
from draftproof.engine.embedded import gguf, prepare

CONTEXT = 2048
LOOKED_UP = 10
"""Tokens that prompt lookup proposes: as many as transformers' is given."""


def peers() -> dict[str, Callable[[str, float, int], tuple[int, float]]]:
    """Ways to decode, by name; each takes a prompt, a temperature and a length as `bench.peers.Decode` says."""
    return {
        "llama.cpp, plain": way(None),
        "llama.cpp, prompt lookup": way(LlamaPromptLookupDecoding(num_pred_tokens=LOOKED_UP)),
    }


def way(lookup: LlamaPromptLookupDecoding | None) -> Callable[[str, float, int], tuple[int, float]]:
    """One model of its own."""
    tokenizer = AutoTokenizer.from_pretrained(prepare())
    threads = os.cpu_count() or 1
    model = Llama(
        str(gguf()), n_ctx=CONTEXT, n_threads=threads, n_threads_batch=threads, draft_model=lookup, verbose=False
    )

    def decode(prompt: str, temperature: float, tokens: int) -> tuple[int, float]:
        ids = tokenizer.apply_chat_template(chat(prompt)["messages"], add_generation_prompt=True)["input_ids"]
        # it would take over what the last prompt has in common with this one
        model.reset()
        arrivals = []
        for token in model.generate(ids, temp=temperature, top_k=0, top_p=1.0, min_p=0.0, repeat_penalty=1.0):
            arrivals.append(time.perf_counter())
            if token == tokenizer.eos_token_id or len(arrivals) == tokens:
                break
        return len(arrivals) - 1, arrivals[-1] - arrivals[0]

    return decode
