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

# Most tokens a filter looks at before it sorts whole rows; ascending.
_CANDIDATES = (1024, 16384)


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
        float32 [N, V] (float64 for float64 logits). A row with NaN, +inf or no finite logit is NaN throughout.

    Raises:
        ValueError: lengths differ, a needed history is missing, or a biased id isn't in the vocabulary.
    """
    if not len(params) == len(histories) == logits.shape[0]:
        raise ValueError(f"{logits.shape[0]} rows, {len(params)} params, {len(histories)} histories")
    x = logits if logits.dtype == torch.float64 else logits.to(torch.float32)
    x = _adjusted(x, params, histories, owned=x is not logits)
    greedy = _rows(params, lambda p: p.greedy)
    if len(greedy) == 0:
        return _sampled(x, params)
    if len(greedy) == len(params):
        return _one_hot(x)
    warm = _rows(params, lambda p: not p.greedy)
    out = torch.empty_like(x)
    out[_index(greedy, x)] = _one_hot(x[_index(greedy, x)])
    out[_index(warm, x)] = _sampled(x[_index(warm, x)], [params[i] for i in warm])
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


def _one_hot(x: Tensor) -> Tensor:
    """Argmax, ties to the lower id; NaN where there is none. [N, V] -> [N, V]."""
    best = x.argmax(dim=-1, keepdim=True)
    top = torch.where(torch.isfinite(x.gather(-1, best)), 1.0, torch.nan).to(x.dtype)
    # 0 * NaN spreads the NaN of an unusable row over all of it.
    return (torch.zeros_like(x) + 0.0 * top).scatter_(-1, best, top)


def _sampled(x: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Temperature, filters, softmax of rows that aren't greedy. [N, V] -> [N, V]."""
    vocab_size = x.shape[-1]
    z = _tempered(x, params)
    cut = _rows(params, lambda p: 0 < p.top_k < vocab_size)
    if cut:
        index = _index(cut, x)
        rows = x[index]
        threshold = _kth_largest(rows, [params[i].top_k for i in cut])
        z = z.clone() if z is x else z
        z[index] = z[index].masked_fill_(rows < threshold[:, None], -torch.inf)
    p = z.softmax(dim=-1)
    for filtered, keep in (
        (_rows(params, lambda p: p.top_p < 1.0), _nucleus),
        (_rows(params, lambda p: p.min_p > 0.0), _likely),
    ):
        if filtered:
            index = _index(filtered, x)
            kept = keep(p[index], x[index], [params[i] for i in filtered])
            rows = z[index].masked_fill_(~kept, -torch.inf)
            z = z.clone() if z is x else z
            z[index] = rows
            p[index] = rows.softmax(dim=-1)
    return p


def _tempered(x: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """(x - max) / T, the shift keeping tiny temperatures from overflowing; x itself where every T is 1."""
    rows = _rows(params, lambda p: p.temperature != 1.0)
    if not rows:
        return x
    tiny = torch.finfo(x.dtype).tiny
    temperature = torch.tensor([max(p.temperature, tiny) for p in params], dtype=x.dtype, device=x.device)
    return torch.sub(x, x.amax(dim=-1, keepdim=True)).div_(temperature[:, None])


def _kth_largest(x: Tensor, ks: Sequence[int]) -> Tensor:
    """The k-th largest value of each row. [N, V] -> [N]."""
    out = x.new_empty(len(ks))
    below = 0
    for width in (*_CANDIDATES, x.shape[-1]):
        chosen = [i for i, k in enumerate(ks) if below < k <= width]
        below = width
        if chosen:
            k = torch.tensor([ks[i] for i in chosen], device=x.device)
            values = x[_index(chosen, x)].topk(int(max(ks[i] for i in chosen)), dim=-1).values
            out[_index(chosen, x)] = values.gather(-1, k[:, None] - 1)[:, 0]
    return out


def _nucleus(p: Tensor, x: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Top-p: the fewest tokens in descending order of logit, ties to the lower id, whose mass reaches top_p.

    Looks at the largest logits only; rows whose nucleus doesn't end among them try more, in the end all.

    Args:
        p: [N, V] distributions after top-k.
        x: [N, V] logits that order the tokens.
        params: N settings.

    Returns:
        bool [N, V].
    """
    vocab_size = x.shape[-1]
    top_p = torch.tensor([q.top_p for q in params], dtype=torch.float64, device=x.device)
    keep = torch.ones_like(x, dtype=torch.bool)
    pending = torch.arange(len(params), device=x.device)
    for width in (*(w for w in _CANDIDATES if w < vocab_size), vocab_size):
        rows = x[pending]
        values, ids = rows.topk(width, dim=-1)
        masses = p[pending].gather(-1, ids)
        before = masses.cumsum(dim=-1, dtype=torch.float64)[:, :-1]
        kept = 1 + (before < top_p[pending, None]).sum(dim=-1)
        # kept == width says that the nucleus may go on, unless all that is left has no mass.
        ended = kept < width
        keep[pending[ended]] = _first(rows[ended], values[ended], kept[ended])
        pending = pending[~ended & (masses[:, -1] > 0)]
        if len(pending) == 0:
            break
    return keep


def _first(x: Tensor, values: Tensor, count: Tensor) -> Tensor:
    """Marks the `count` largest of each row, ties to the lower id.

    Args:
        x: [N, V].
        values: [N, W] the W largest of each row, descending.
        count: int64 [N], < W.

    Returns:
        bool [N, V].
    """
    last = values.gather(-1, count[:, None] - 1)
    keep = x >= last
    tied = (values.gather(-1, count[:, None]) == last)[:, 0].nonzero()[:, 0]
    if len(tied):
        equal = x[tied] == last[tied]
        room = count[tied, None] - (values[tied] > last[tied]).sum(dim=-1, keepdim=True)
        keep[tied] &= ~equal | (equal.cumsum(dim=-1) <= room)
    return keep


def _likely(p: Tensor, x: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Min-p: tokens with at least min_p times the largest probability. bool [N, V]."""
    share = torch.tensor([q.min_p for q in params], dtype=x.dtype, device=x.device)
    return p >= share[:, None] * p.amax(dim=-1, keepdim=True)


def _rows(params: Sequence[SamplingParams], wanted: Callable[[SamplingParams], bool]) -> list[int]:
    return [i for i, p in enumerate(params) if wanted(p)]


def _index(rows: Sequence[int], like: Tensor) -> Tensor:
    return torch.tensor(rows, dtype=torch.int64, device=like.device)
