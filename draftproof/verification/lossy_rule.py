"""Lossy rules, and exactly how much they lose.

Such a rule keeps a mass m(x) in [0, q(x)] of every token: a proposal x stays iff u * q(x) < m(x), strictly. The token
rule is m = min(p, q), and the only lossless choice. After a rejection the token is drawn from (p - m)+ / W with
W = sum (p - m)+, which keeps the loss as small as it can be for this m: the law of the token differs from p by

    TV = sum_x (m(x) - p(x))+,

no more and no less (docs/rules.md). The TV between the law of a whole output and the target's is at most the
expectation of the sum over its tokens.

- lenient: m = min(q, p / l), 0 < l < 1 (Leviathan et al. 2023, appendix A.5); TV <= 1 - l.
- typical: m = q where p(x) > min(e, sqrt(e) * exp(-H(p))), else 0 (Cai et al. 2024, arXiv 2401.10774, section 3.3.1).
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftproof.sampling.params import Rule

# Stands for "no limit": large enough that p times it exceeds every q, small enough to stay finite.
UNLIMITED = 1e280


def limits(rule: Rule, lenience: float, p: Tensor) -> tuple[Tensor, Tensor]:
    """What `kept` needs to know of each row.

    Args:
        rule: a lossy rule.
        lenience: its parameter, in (0, 1).
        p: float[R, V], rows that sum to one as near as makes no difference.

    Returns:
        ratios float64[R], how many times p may be kept; floors float64[R], p at or below which nothing is.
    """
    rows = torch.ones(len(p), dtype=torch.float64, device=p.device)
    if rule is Rule.LENIENT:
        return rows / lenience, rows * 0.0
    entropy = torch.special.entr(p.double()).sum(dim=-1)
    return rows * UNLIMITED, torch.clamp(lenience**0.5 * torch.exp(-entropy), max=lenience)


def kept(p: Tensor, q: Tensor, ratios: Tensor, floors: Tensor) -> Tensor:
    """m of any tokens: 0 where p is 0.

    Args:
        p, q: masses of the same tokens, any shape.
        ratios, floors: of their rows, broadcastable to it.

    Returns:
        float64, the same shape.
    """
    p = p.double()
    return torch.where(p > floors, torch.minimum(q.double(), p * ratios), 0.0)
