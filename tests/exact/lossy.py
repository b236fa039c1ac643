"""The law of a lossy rule's rounds, from the mass that the library says it keeps."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from draftproof.sampling.params import SamplingParams
from draftproof.verification import lossy_rule, token_rule


@dataclass(frozen=True)
class Lossy:
    """A rule in the enumeration's sense."""

    params: SamplingParams

    def kept(self, p: Tensor, q: Tensor) -> Tensor:
        """m of rows p and q, float64[N, V]."""
        assert self.params.lenience is not None
        ratios, floors = lossy_rule.limits(self.params.rule, self.params.lenience, p)
        return lossy_rule.kept(p, q, ratios[:, None], floors[:, None])

    def outcome_law(self, p: Tensor, q: Tensor, proposals: Tensor, lengths: Tensor) -> Tensor:
        """As `token_rule.outcome_law`, with m in place of min(p, q)."""
        batch, height, vocab = p.shape
        inside = torch.arange(height - 1) < lengths[:, None]
        m = torch.where(inside[..., None], self.kept(p[:, :-1].flatten(0, 1), q.flatten(0, 1)).view(q.shape), 0.0)
        at = proposals[..., None]
        accept = torch.where(inside, (m.gather(2, at) / q.gather(2, at))[..., 0], 0.0)
        reached = torch.cat([torch.ones((batch, 1)).double(), accept.cumprod(dim=1)], dim=1)
        stops = reached * torch.cat([1.0 - accept, torch.ones((batch, 1)).double()], dim=1)
        m = torch.cat([m, torch.zeros((batch, 1, vocab)).double()], dim=1)
        weights = token_rule.residual(p.flatten(0, 1), m.flatten(0, 1)).view(p.shape)
        return stops[..., None] * weights / weights.sum(dim=-1, keepdim=True)
