"""The one pipeline from logits to a distribution, used by draft and target alike.

Order: repetition, presence and frequency penalties, logit bias; then temperature, top-k, top-p, min-p. Every stage runs
over all rows that need it at once, and a row's result never depends on its batch mates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftproof.sampling.params import SamplingParams

SAMPLING_CONTRACT = 1
"""Version of the pipeline's law; both sides must agree on it."""

# How many of the largest logits a filter looks at before it sorts whole rows; ascending.
_CANDIDATES = (128, 2048, 16384)

_Stage = Callable[[Tensor, Sequence[SamplingParams]], Tensor]


@dataclass(frozen=True, slots=True)
class History:
    """The tokens before a position, as the penalties see them.

    Attributes:
        prompt_ids: the prompt.
        output_ids: what was generated after it, proposals before the position included.
    """

    prompt_ids: Sequence[int]
    output_ids: Sequence[int]


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
    x = _adjusted(x, params, histories, owned=x is not logits)
    groups: dict[_Stage, list[int]] = {}
    for i, p in enumerate(params):
        groups.setdefault(_stage(p, x.shape[-1]), []).append(i)
    if len(groups) == 1:
        return next(iter(groups))(x, params)
    out = torch.empty_like(x)
    for stage, rows in groups.items():
        index = torch.tensor(rows, device=x.device)
        out.index_copy_(0, index, stage(x.index_select(0, index), [params[i] for i in rows]))
    return out


def finite_rows(rows: Tensor) -> Tensor:
    """Which rows of logits or distributions are usable: no NaN, no +inf, something finite. [N, V] -> bool [N]."""
    return torch.isfinite(rows.amax(dim=-1))


def _adjusted(x: Tensor, params: Sequence[SamplingParams], histories: Sequence[History | None], owned: bool) -> Tensor:
    """Penalties and bias; touches only the tokens concerned, in float64. [N, V] -> [N, V], x itself if it may."""
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


def _stage(p: SamplingParams, vocab_size: int) -> _Stage:
    """What is left to do after penalties and bias; rows that need the same go together."""
    if p.greedy:
        return _one_hot
    if 0 < p.top_k < vocab_size:
        return _top_k
    return _nucleus if p.top_p < 1.0 or p.min_p > 0.0 else _softmax


def _one_hot(x: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Argmax, ties to the lower id; NaN where there is none. [N, V] -> [N, V]."""
    best = x.argmax(dim=-1, keepdim=True)
    top = torch.where(torch.isfinite(x.gather(-1, best)), 1.0, torch.nan).to(x.dtype)
    return torch.zeros_like(x).scatter_(-1, best, top)


def _softmax(x: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Temperature and softmax. [N, V] -> [N, V]."""
    if all(p.temperature == 1.0 for p in params):
        return x.softmax(dim=-1)
    return torch.sub(x, x.amax(dim=-1, keepdim=True)).div_(_temperatures(x, params)).softmax(dim=-1)


def _top_k(x: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Rows with top-k, and whatever filter after it. [N, V] -> [N, V]."""
    return _filtered(x, params, None)


def _nucleus(x: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Rows with top-p or min-p alone: their masses are relative to the whole row. [N, V] -> [N, V]."""
    return _filtered(x, params, _softmax(x, params))


def _filtered(x: Tensor, params: Sequence[SamplingParams], full: Tensor | None) -> Tensor:
    """Filters and softmax.

    What a filter keeps is a prefix of the tokens in descending order, so that it comes down to one length per row, and
    to the largest few logits: rows whose prefix doesn't provably end among them try more, in the end all.

    Args:
        x: [N, V] logits.
        params: N settings; all with top-k, or all without.
        full: [N, V] unfiltered distributions for rows without top-k, else None.

    Returns:
        [N, V].
    """
    vocab_size = x.shape[-1]
    temperature = _temperatures(x, params)
    # Off means off: rounded masses may sum to one before the last token.
    top_p = _column([p.top_p if p.top_p < 1.0 else 2.0 for p in params], x).to(torch.float64)
    min_p = _column([p.min_p for p in params], x)
    top_k = torch.tensor([[p.top_k] for p in params], device=x.device)
    out = torch.zeros_like(x)
    pending = torch.arange(len(params), device=x.device)
    for width in (*(w for w in _CANDIDATES if w < vocab_size), vocab_size):
        rows = x if len(pending) == len(params) else x[pending]
        values, ids = rows.topk(width) if width < vocab_size else rows.sort(descending=True, stable=True)
        # Shifted by the largest, so that tiny temperatures don't overflow.
        z = (values - values[:, :1]) / temperature[pending]
        if full is None:
            kth = values.gather(-1, top_k[pending].clamp(max=width) - 1)
            kept = (values >= kth).sum(dim=-1, keepdim=True)
            masses = _prefix(z, kept).softmax(dim=-1)
        else:
            kept = torch.full_like(pending, width)[:, None]
            masses = (full if len(pending) == len(params) else full[pending]).gather(-1, ids)
        before = masses.cumsum(dim=-1, dtype=torch.float64)[:, :-1]
        kept = torch.minimum(kept, 1 + (before < top_p[pending]).sum(dim=-1, keepdim=True))
        kept = torch.minimum(kept, (masses >= min_p[pending] * masses[:, :1]).sum(dim=-1, keepdim=True)).clamp_(min=1)
        last = values.gather(-1, kept - 1)
        # Ended: the last candidate lies beyond the prefix and its ties, or has no mass, like all that come after it.
        # (Negated, so that NaN ends too.)
        done = (~(values[:, -1:] >= last) | (masses[:, -1:] == 0))[:, 0] | (width == vocab_size)
        kept, ids = kept[done], _lower_ids_first(values[done], ids[done], kept[done])
        out[pending[done, None], ids] = _prefix(z[done], kept).softmax(dim=-1)
        pending = pending[~done]
        if len(pending) == 0:
            break
    return out


def _prefix(z: Tensor, length: Tensor) -> Tensor:
    """z with all but the first `length` of each row masked. [N, W], int64 [N, 1] -> [N, W]."""
    return z.masked_fill(torch.arange(z.shape[-1], device=z.device) >= length, -torch.inf)


def _lower_ids_first(values: Tensor, ids: Tensor, length: Tensor) -> Tensor:
    """Puts tied candidates in order of id where a prefix ends within a tie, since topk leaves their order open.

    Args:
        values: [N, W] descending.
        ids: int64 [N, W].
        length: int64 [N, 1] of the prefixes.

    Returns:
        int64 [N, W].
    """
    after = values.gather(-1, length.clamp(max=values.shape[-1] - 1))
    tied = (values.gather(-1, length - 1) == after)[:, 0].nonzero()[:, 0]
    if len(tied):
        ascending, order = ids[tied].sort(dim=-1)
        by_value = values[tied].gather(-1, order).sort(dim=-1, descending=True, stable=True).indices
        ids[tied] = ascending.gather(-1, by_value)
    return ids


def _temperatures(x: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """[N, 1], positive in x's dtype."""
    tiny = torch.finfo(x.dtype).tiny
    return _column([max(p.temperature, tiny) for p in params], x)


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    """[N, 1] in the dtype and on the device of `like`."""
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]
