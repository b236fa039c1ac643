"""The one pipeline from logits to a distribution, used by draft and target alike.

Order: repetition, presence and frequency penalties, logit bias; then temperature, top-k, top-p, min-p. Every stage runs
over all rows that need it at once, and a row's result never depends on its batch mates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from draftproof.sampling.filters import filtered, nucleus, softmax
from draftproof.sampling.params import SamplingParams
from draftproof.sampling.penalties import History, adjusted

__all__ = ["SAMPLING_CONTRACT", "History", "distribution", "distributions", "finite_rows"]

SAMPLING_CONTRACT = 3
"""Version of the pipeline's law, the rules and the layout of random numbers; both sides must agree on it."""

_Stage = Callable[[Tensor, Sequence[SamplingParams]], Tensor]


def distribution(logits: Tensor, params: SamplingParams, history: History | None = None) -> Tensor:
    """`distributions` of [..., V] logits that share params and history. Returns [..., V]."""
    rows = logits.reshape(-1, logits.shape[-1])
    n = rows.shape[0]
    return distributions(rows, [params] * n, [history] * n).reshape(logits.shape)


def distributions(logits: Tensor, params: Sequence[SamplingParams], histories: Sequence[History | None]) -> Tensor:
    """The distribution of each row.

    Args:
        logits: [N, V], any float dtype; left untouched. -inf masks a token.
        params: N settings, which may differ in everything.
        histories: N histories; None where the row's params need none.

    Returns:
        float32 [N, V] (float64 for float64 logits). A row with NaN, +inf or no finite logit holds NaN.

    Raises:
        ValueError: lengths differ, a needed history is missing, or a biased id isn't in the vocabulary.
    """
    if not len(params) == len(histories) == logits.shape[0]:
        raise ValueError(f"{logits.shape[0]} rows, {len(params)} params, {len(histories)} histories")
    x = logits if logits.dtype == torch.float64 else logits.to(torch.float32)
    groups: dict[_Stage, list[int]] = {}
    for i, p in enumerate(params):
        groups.setdefault(_stage(p, x.shape[-1]), []).append(i)
    if len(groups) == 1:
        return next(iter(groups))(adjusted(x, params, histories, owned=x is not logits), params)
    out = torch.empty_like(x)
    for stage, rows in groups.items():
        index = torch.tensor(rows, device=x.device)
        theirs = [params[i] for i in rows]
        rows_x = adjusted(x.index_select(0, index), theirs, [histories[i] for i in rows], owned=True)
        out.index_copy_(0, index, stage(rows_x, theirs))
    return out


def finite_rows(rows: Tensor) -> Tensor:
    """Which rows of logits or distributions are usable: no NaN, no +inf, something finite. [N, V] -> bool [N]."""
    return torch.isfinite(rows.amax(dim=-1))


def _stage(p: SamplingParams, vocab_size: int) -> _Stage:
    """What is left to do after penalties and bias; rows that need the same go together."""
    if p.greedy:
        return _one_hot
    if 0 < p.top_k < vocab_size:
        return _top_k
    return _nucleus if p.top_p < 1.0 or p.min_p > 0.0 else softmax


def _one_hot(x: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Argmax, ties to the lower id; NaN where there is none. [N, V] -> [N, V]."""
    best = x.argmax(dim=-1, keepdim=True)
    top = torch.where(torch.isfinite(x.gather(-1, best)), 1.0, torch.nan).to(x.dtype)
    return torch.zeros_like(x).scatter_(-1, best, top)


def _top_k(x: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Rows with top-k, and whatever filter after it. [N, V] -> [N, V]."""
    return filtered(x, params, None)


def _nucleus(x: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Rows with top-p or min-p alone: their masses are relative to the whole row. [N, V] -> [N, V]."""
    return nucleus(x, params)
