"""The one inverse CDF over float weights."""

from __future__ import annotations

import torch
from torch import Tensor


def inverse_cdf(weights: Tensor, u: Tensor) -> Tensor:
    """Draws one token per row: the first whose cumulative weight is strictly greater than u times the row's total.

    A token of zero weight is never drawn, at u = 0 or u -> 1, whatever rounding does to the cumulative sums (a
    parallel scan may even let them fall).

    Args:
        weights: [B, V] unnormalised, finite and >= 0, any float dtype; cumulated in float64.
        u: float64 [B] in [0, 1).

    Returns:
        int64 [B]; -1 for a row whose weights are all zero.
    """
    cumulative = weights.cumsum(dim=-1, dtype=torch.float64)
    total = cumulative[:, -1]
    # u * total may round up to total, which no cumulative weight exceeds.
    threshold = torch.minimum(u.to(torch.float64) * total, torch.nextafter(total, torch.zeros_like(total)))
    if weights.device.type == "cpu":
        # Sums of one token after the other never fall, and rise at a token of some weight alone.
        first = torch.searchsorted(cumulative, threshold[:, None], right=True)[:, 0]
        return torch.where(total > 0, first, -1)
    hit = (cumulative > threshold[:, None]) & (weights > 0)
    first = hit.to(torch.uint8).argmax(dim=-1)
    return torch.where(hit.any(dim=-1), first, -1)
