"""Temperature and the filters top-k, top-p and min-p."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftproof.sampling.params import SamplingParams

# How many of the largest logits a filter looks at before it sorts whole rows; ascending.
_CANDIDATES = (128, 2048, 16384)
# Masses above which a filter looks at tokens one row at a time, descending.
_LEAST = (1e-4, 1e-6, 0.0)


def softmax(x: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Temperature and softmax. [N, V] -> [N, V]."""
    if all(p.temperature == 1.0 for p in params):
        return x.softmax(dim=-1)
    return torch.sub(x, x.amax(dim=-1, keepdim=True)).div_(_temperatures(x, params)).softmax(dim=-1)


def filtered(x: Tensor, params: Sequence[SamplingParams], full: Tensor | None) -> Tensor:
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
    top_p = torch.tensor([[p.top_p if p.top_p < 1.0 else 2.0] for p in params], dtype=torch.float64, device=x.device)
    min_p = _column([p.min_p for p in params], x)
    top_k = torch.tensor([[p.top_k] for p in params], device=x.device)
    out = torch.zeros_like(x)
    ended = torch.zeros(len(params), dtype=torch.bool, device=x.device)
    at_least = torch.ones_like(top_k) if full is not None else top_k.clone()
    for width in (*(w for w in _CANDIDATES if w < vocab_size), vocab_size):
        trying = (~ended & ((at_least[:, 0] < width) | (width == vocab_size))).nonzero()[:, 0]
        if len(trying) == 0:
            continue
        rows = _pick(x, trying)
        values, ids = rows.topk(width) if width < vocab_size else rows.sort(descending=True, stable=True)
        # Shifted by the largest, so that tiny temperatures don't overflow.
        z = (values - values[:, :1]) / temperature[trying]
        masses = None if full is None else _pick(full, trying).gather(-1, ids)
        kept, masses = _prefix_lengths(values, z, masses, top_k[trying], top_p[trying], min_p[trying])
        last = values.gather(-1, kept - 1)
        # Done: the last candidate lies beyond the prefix and its ties, or has no mass, like all that come after it.
        # (Negated, so that NaN is done too.)
        done = (~(values[:, -1:] >= last) | (masses[:, -1:] == 0))[:, 0] | (width == vocab_size)
        kept, ids = kept[done], ids[done]
        if width < vocab_size:
            ids = _lower_ids_first(values[done], ids, kept)
        out[trying[done, None], ids] = _prefix(z[done], kept).softmax(dim=-1)
        ended[trying[done]] = True
        if full is not None:
            at_least[trying] = width + _still_needed(masses, top_p[trying])
    return out


def nucleus(x: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Rows with top-p or min-p and without top-k, as `filtered` has them. [N, V] -> [N, V].

    On the CPU few tokens matter, and numpy finds those above a mass several times as fast as torch the largest few.
    """
    full = softmax(x, params)
    if x.device.type != "cpu":
        return filtered(x, params, full)
    temperature = _temperatures(x, params)[:, 0].numpy()
    out = torch.zeros_like(x)
    bad = full[:, 0].isnan()
    if bad.any():
        # NaN throughout, and stays so.
        out[bad] = torch.nan
    found, logits, masses = out.numpy(), x.numpy(), full.numpy()
    for row in torch.nonzero(~bad)[:, 0].tolist():
        ids = _nucleus_ids(logits[row], masses[row], params[row])
        values = logits[row, ids]
        weights = np.exp((values - values[0]) / temperature[row])
        found[row, ids] = weights / weights.sum()
    return out


def _nucleus_ids(values: NDArray[np.floating], masses: NDArray[np.floating], p: SamplingParams) -> NDArray[np.int64]:
    """The tokens that top-p and min-p keep, descending, at least one.

    Args:
        values: [V] logits.
        masses: [V] their probabilities.

    Returns:
        int64 [K].
    """
    for least in _LEAST:
        ids = np.flatnonzero(masses >= least)
        if len(ids) == 0:
            continue
        ids = ids[np.argsort(-values[ids], kind="stable")]
        among = masses[ids]
        kept = len(ids)
        if p.top_p < 1.0:
            before = among.cumsum(dtype=np.float64)[:-1]
            kept = 1 + int(np.count_nonzero(before < p.top_p))
        kept = max(1, min(kept, int(np.count_nonzero(among >= p.min_p * among[0]))))
        # Done if the prefix ends among them; rounded masses fall a little less strictly than the logits.
        if least == 0.0 or (kept < len(ids) and among[kept - 1] > least * 1.001):
            break
    return ids[:kept]


def _prefix_lengths(
    values: Tensor, z: Tensor, masses: Tensor | None, top_k: Tensor, top_p: Tensor, min_p: Tensor
) -> tuple[Tensor, Tensor]:
    """How many of the candidates all filters keep, at least 1.

    Args:
        values: [N, W] the W largest logits, descending.
        z: [N, W] the same, shifted and tempered.
        masses: [N, W] their probabilities without top-k; None where top-k applies.
        top_k, top_p, min_p: [N, 1].

    Returns:
        int64 [N, 1] and the probabilities after top-k [N, W].
    """
    width = values.shape[-1]
    kept = torch.full_like(top_k, width)
    if masses is None:
        kept = (values >= values.gather(-1, top_k.clamp(max=width) - 1)).sum(dim=-1, keepdim=True)
        masses = _prefix(z, kept).softmax(dim=-1)
    before = masses.cumsum(dim=-1, dtype=torch.float64)[:, :-1]
    kept = torch.minimum(kept, 1 + (before < top_p).sum(dim=-1, keepdim=True))
    kept = torch.minimum(kept, (masses >= min_p * masses[:, :1]).sum(dim=-1, keepdim=True))
    return kept.clamp(min=1), masses


def _still_needed(masses: Tensor, top_p: Tensor) -> Tensor:
    """At least how many tokens top-p needs beyond these: none of them has more mass than the last. int64 [N, 1]."""
    gap = top_p - masses.cumsum(dim=-1, dtype=torch.float64)[:, -1:]
    more = torch.where(top_p > 1, 0.0, gap / masses[:, -1:])
    return more.nan_to_num(0.0).clamp(0, 2**31).to(torch.int64)


def _pick(x: Tensor, rows: Tensor) -> Tensor:
    """Rows of x in ascending order; x itself if that is all of them."""
    return x if len(rows) == len(x) else x.index_select(0, rows)


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
    """[N, 1], positive and finite in x's dtype."""
    limits = torch.finfo(x.dtype)
    return _column([min(max(p.temperature, limits.tiny), limits.max) for p in params], x)


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    """[N, 1] in the dtype and on the device of `like`."""
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]
