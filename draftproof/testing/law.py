"""Exact laws by enumeration: what a sampler must produce, computed without one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

import torch
from torch import Tensor

from draftproof.sampling.params import SamplingParams
from draftproof.sampling.pipeline import History, distributions

LogitsAfter = Callable[[Sequence[Sequence[int]]], Tensor]
"""Contexts of equal length -> logits of the token after each, [len(contexts), V], float32 or float64."""

CHUNK = 2048


def joint_law(
    logits_after: LogitsAfter,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    length: int,
    stop_ids: AbstractSet[int] = frozenset(),
) -> dict[tuple[int, ...], float]:
    """The joint law of the first `length` output tokens.

    Args:
        logits_after: the model.
        prompt_ids: what the output continues.
        params: pipeline settings. `seed`, `stop`, `max_tokens` and the like play no part here.
        length: tokens enumerated; V^length outcomes at most.
        stop_ids: an output ends with the first of these, and is shorter then.

    Returns:
        Mass of every output of positive mass.
    """
    ended: dict[tuple[int, ...], float] = {}
    open_law: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(length):
        longer: dict[tuple[int, ...], float] = {}
        outputs = list(open_law)
        for begin in range(0, len(outputs), CHUNK):
            chunk = outputs[begin : begin + CHUNK]
            logits = logits_after([[*prompt_ids, *output] for output in chunk]).double()
            histories = [History(prompt_ids=prompt_ids, output_ids=output) for output in chunk]
            rows = distributions(logits, [params] * len(chunk), histories)
            for output, row in zip(chunk, rows, strict=True):
                for token in row.nonzero()[:, 0].tolist():
                    law = ended if token in stop_ids else longer
                    law[(*output, token)] = open_law[output] * float(row[token])
        open_law = longer
    return ended | open_law


def target_law(
    model_folder: str | Path, prompt_ids: Sequence[int], params: SamplingParams, length: int
) -> dict[tuple[int, ...], float]:
    """The joint law of a model's first `length` output tokens, by plain transformers in float64.

    Outputs end with the model's end of sequence, unless `params.ignore_eos`, and with `params.stop_token_ids`.
    """
    from draftproof.testing.tiny import load_plain, real_vocabulary

    vocab_size, eos_id = real_vocabulary(model_folder)
    model = load_plain(model_folder, torch.float64)

    def logits_after(contexts: Sequence[Sequence[int]]) -> Tensor:
        with torch.inference_mode():
            logits: Tensor = model(torch.tensor(contexts), logits_to_keep=1, use_cache=False).logits
        return logits[:, -1, :vocab_size]

    stop_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else {eos_id})
    return joint_law(logits_after, prompt_ids, params, length, stop_ids)
