"""When two texts of one request are the same: equal, or first different at a proven near-tie.

float32 sums depend on the batch they are computed in. Where a draw comes closer to a threshold than that, either side
is right; a recomputation in float64 by plain transformers tells such a tie from an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from draftproof import Completion
from draftproof.client.types import PositionTrace
from draftproof.sampling.params import SamplingParams
from draftproof.sampling.pipeline import History, distribution

GAP = 1e-4


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Where two outputs part; None where they are equal."""
    return next((i for i, (x, y) in enumerate(zip_longest(a, b)) if x != y), None)


def logits_after(model: Any, context: Sequence[int], vocab_size: int) -> Tensor:
    """Logits after a context by plain transformers: [V] in the model's dtype."""
    with torch.inference_mode():
        out = model(torch.tensor([list(context)]), logits_to_keep=1, use_cache=False).logits
    return out[0, -1, :vocab_size]


def top_two_gap(model: Any, context: Sequence[int], vocab_size: int) -> float:
    """Distance of the two largest logits after a context."""
    first, second = logits_after(model, context, vocab_size).topk(2).values.tolist()
    return float(first - second)


def is_near_tie(a: Completion, b: Completion, at: int, model: Any, vocab_size: int, params: SamplingParams) -> bool:
    """Whether two traced runs part at a near-tie.

    Args:
        a, b: runs of one request with a full trace.
        at: index of the first token that differs.
        model: the target in float64.
        params: settings of the request.
    """
    one, other = a.tokens[at].trace, b.tokens[at].trace
    assert one is not None
    assert other is not None
    assert (one.block_start, one.accept_uniform) == (other.block_start, other.accept_uniform)
    output = a.token_ids[:at]
    logits = logits_after(model, [*a.prompt_ids, *output], vocab_size)
    p = distribution(logits, params, History(a.prompt_ids, output))
    if one.proposed_id != other.proposed_id:
        # the draft's own tie: its q, which both runs carry, differ by rounding alone
        return bool((_full(one, vocab_size) - _full(other, vocab_size)).abs().max() < GAP)
    if one.accepted != other.accepted:
        assert one.proposed_id is not None
        return abs(one.accept_uniform * one.q_proposed - float(p[one.proposed_id])) < GAP
    weights = p if one.proposed_id is None else (p - _full(one, vocab_size)).clamp(min=0)
    edges = (weights / weights.sum()).cumsum(0)
    return bool((edges - one.draw_uniform).abs().min() < GAP)


def _full(trace: PositionTrace, vocab_size: int) -> Tensor:
    """q of a full trace: float64 [V]."""
    q = torch.zeros(vocab_size, dtype=torch.float64)
    if trace.q is not None:
        masses = torch.tensor(list(trace.q.masses), dtype=torch.float64)
        ids = torch.arange(vocab_size) if trace.q.ids is None else torch.tensor(list(trace.q.ids))
        q[ids] = masses
    return q
