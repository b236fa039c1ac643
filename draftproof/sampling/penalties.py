"""Penalties and bias: the stages that touch single tokens and look at the tokens before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftproof.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True)
class History:
    """The tokens before a position, as the penalties see them.

    Attributes:
        prompt_ids: the prompt.
        output_ids: what was generated after it, proposals before the position included.
    """

    prompt_ids: Sequence[int]
    output_ids: Sequence[int]


def adjusted(x: Tensor, params: Sequence[SamplingParams], histories: Sequence[History | None], owned: bool) -> Tensor:
    """Penalties and bias; touches only the tokens concerned, in float64. [N, V] -> [N, V], x itself if it may."""
    if not any(p.needs_history or p.logit_bias for p in params):
        return x
    distinct: dict[int, NDArray[np.int64]] = {}
    touched = [_Touched.of(p, h, x.shape[-1], distinct) for p, h in zip(params, histories, strict=True)]
    sizes = np.array([len(t.ids) for t in touched])
    if not sizes.any():
        return x
    if not owned:
        x = x.clone()

    def column(values: list[NDArray[np.float64]] | list[NDArray[np.int64]]) -> Tensor:
        return torch.from_numpy(np.concatenate(values)).to(x.device)

    def per_row(value: Callable[[SamplingParams], float]) -> Tensor:
        return torch.from_numpy(np.repeat(np.array([value(p) for p in params], dtype=np.float64), sizes)).to(x.device)

    row = torch.from_numpy(np.repeat(np.arange(len(params)), sizes)).to(x.device)
    ids, outputs = column([t.ids for t in touched]), column([t.outputs for t in touched])
    before = x[row, ids].to(torch.float64)
    value = before
    repetition = torch.where(column([t.seen for t in touched]) > 0, per_row(lambda p: p.repetition_penalty), 1.0)
    value = torch.where(value < 0, value * repetition, value / repetition)
    value = value - torch.where(outputs > 0, per_row(lambda p: p.presence_penalty), 0.0)
    value = value - outputs * per_row(lambda p: p.frequency_penalty)
    value = value + column([t.bias for t in touched])
    # Legal settings must not turn a finite logit into an infinite one.
    limit = torch.finfo(x.dtype).max
    value = torch.where(torch.isfinite(before), value.clamp(-limit, limit), value)
    x[row, ids] = value.to(x.dtype)
    return x


@dataclass(frozen=True, slots=True)
class _Touched:
    """Tokens of one row whose logits change: distinct ids, whether seen, occurrences in the output, bias; all [M]."""

    ids: NDArray[np.int64]
    seen: NDArray[np.float64]
    outputs: NDArray[np.float64]
    bias: NDArray[np.float64]

    @classmethod
    def of(
        cls, p: SamplingParams, history: History | None, vocab_size: int, distinct: dict[int, NDArray[np.int64]]
    ) -> _Touched:
        """`distinct` holds the distinct prompt ids by the prompt's identity: rows of one block share theirs."""
        empty = np.empty(0, dtype=np.int64)
        prompt = output = counts = empty
        if p.needs_history:
            if history is None:
                raise ValueError("penalties need a history")
            output, counts = np.unique(_known(history.output_ids, vocab_size), return_counts=True)
            if p.repetition_penalty != 1.0:
                key = id(history.prompt_ids)
                if key not in distinct:
                    distinct[key] = np.unique(_known(history.prompt_ids, vocab_size))
                prompt = distinct[key]
        biased = np.fromiter(p.logit_bias.keys(), dtype=np.int64, count=len(p.logit_bias))
        if len(biased) and biased.max() >= vocab_size:
            raise ValueError(f"logit_bias has id {biased.max()}, the vocabulary {vocab_size} tokens")
        ids = np.unique(np.concatenate([prompt, output, biased]))
        seen, outputs, bias = np.zeros((3, len(ids)))
        seen[np.searchsorted(ids, prompt)] = 1.0
        seen[np.searchsorted(ids, output)] = 1.0
        outputs[np.searchsorted(ids, output)] = counts
        bias[np.searchsorted(ids, biased)] = list(p.logit_bias.values())
        return cls(ids, seen, outputs, bias)


def _known(ids: Sequence[int], vocab_size: int) -> NDArray[np.int64]:
    """Ids that have a logit: a prompt may hold others (padded embeddings)."""
    array = np.asarray(ids, dtype=np.int64)
    return array[(array >= 0) & (array < vocab_size)]
