"""Block verification: the proposals of a round judged together (Sun et al. 2024, arXiv 2403.10444, algorithm 2).

With rho_0 = 1 and rho_i = min(1, rho_{i-1} p(x_i) / q(x_i)) along the block, and S_i = sum_x (rho_i p(x) - q(x))+ over
the next token after i proposals, the first i proposals pass their test iff

    u_i * (S_i + 1 - rho_i) < S_i   while more proposals follow,      u_i < rho_i   for the whole block,

strictly. The longest prefix that passes stays; the token after it is drawn from (rho_i p - q)+ / S_i, or from p after
the whole block. The law is the target's, and in expectation no rule accepts more; both are proven in docs/rules.md.

Everything reduces to the token rule with q / rho in place of q: (rho p - q)+ = rho (p - q / rho)+ and
min(rho p, q) = rho min(p, q / rho). So no pass over the vocabulary is needed beyond the token rule's own, and
S_i = rho_i - sum_x min(rho_i p, q) costs what the sum over q's support does.

Letters and dtypes as in `token_rule`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftproof.sampling.inverse_cdf import inverse_cdf
from draftproof.verification import token_rule
from draftproof.verification.token_rule import Uniforms

# Where rho is 0 it stands in for it: q / rho stays finite, and what is multiplied by rho is 0 all the same.
_SMALLEST = 1e-280


def joint_ratios(p_x: Tensor, q_x: Tensor, lengths: Tensor) -> Tensor:
    """rho of every prefix of every block.

    Args:
        p_x, q_x: [B, G]; entries at or past a round's length are ignored.
        lengths: int64[B], each in [0, G].

    Returns:
        float64[B, G+1], rho_0 = 1 first; 0 past a round's length.
    """
    batch, gamma = p_x.shape
    ratios = torch.ones((batch, gamma + 1), dtype=torch.float64, device=p_x.device)
    for i in range(gamma):
        step = token_rule.accept_probability(ratios[:, i] * p_x[:, i], q_x[:, i])
        ratios[:, i + 1] = torch.where(i < lengths, step, 0.0)
    return ratios


def stretch(ratios: Tensor) -> Tensor:
    """1 / rho, by which q is multiplied to take the place of the token rule's q; any shape, float64."""
    return ratios.clamp(min=_SMALLEST).reciprocal()


def tests(ratios: Tensor, overlaps: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """What each prefix is tested by: it passes iff u * denominator < numerator.

    Where S = 0 and rho = 1 both are 0 and the test fails; p = q there, and a longer prefix passes for certain.

    Args:
        ratios: float64[B, G+1] of `joint_ratios`.
        overlaps: float64[B, G], sum_x min(rho_i p, q) over the token after i proposals; entries at or past a round's
            length are ignored.
        lengths: int64[B].

    Returns:
        Numerators and denominators, float64[B, G] each; column i is the test of the first i + 1 proposals. The
        numerator is 0 past a round's length.
    """
    gamma = ratios.shape[1] - 1
    prefix = torch.arange(1, gamma + 1, device=ratios.device)
    rho = ratios[:, 1:]
    following = torch.cat([overlaps[:, 1:], overlaps[:, :1]], dim=1)
    surplus = torch.where(prefix < lengths[:, None], (rho - following).clamp(min=0.0), 0.0)
    whole = prefix == lengths[:, None]
    return torch.where(whole, rho, surplus), torch.where(whole, 1.0, surplus + 1.0 - rho)


def accepted_lengths(ratios: Tensor, overlaps: Tensor, u: Tensor, lengths: Tensor) -> Tensor:
    """The longest prefix of each block that passes its test.

    Args:
        ratios, overlaps, lengths: as for `tests`.
        u: [B, G] in [0, 1); entry i is for the first i + 1 proposals.

    Returns:
        int64[B].
    """
    numerators, denominators = tests(ratios, overlaps, lengths)
    passed = u.double() * denominators < numerators
    none = torch.zeros((len(ratios), 1), dtype=torch.int64, device=ratios.device)
    sizes = torch.arange(1, ratios.shape[1], device=ratios.device)
    return torch.cat([none, passed * sizes], dim=1).amax(dim=1)


def residual(p: Tensor, q: Tensor, ratios: Tensor) -> Tensor:
    """Weights of the token after the prefix that stays: (rho p - q)+ up to a factor; p for a row without any q.

    Args:
        p, q: float[N, V].
        ratios: float64[N], rho.

    Returns:
        float64[N, V].
    """
    return token_rule.residual(p, q * stretch(ratios)[:, None])


def outcome_law(p: Tensor, q: Tensor, proposals: Tensor, lengths: Tensor) -> Tensor:
    """Probability of every outcome that `verify` can draw; same arguments, no uniforms.

    Returns:
        float64[B, G+1, V]: [b, k, x] is the probability that round b accepts exactly k proposals and goes on with x.
        Each round sums to 1.
    """
    ratios, overlaps, q = _reduced(p, q, proposals, lengths)
    numerators, denominators = tests(ratios, overlaps, lengths)
    passes = numerators / torch.where(denominators > 0, denominators, 1.0)
    certain = torch.ones((len(p), 1), dtype=torch.float64, device=p.device)
    # The longest that passes: it does, and none that is longer.
    longer_fail = torch.cat([(1.0 - passes).flip(1).cumprod(dim=1).flip(1), certain], dim=1)
    stops = torch.cat([certain, passes], dim=1) * longer_fail
    weights = residual(p.flatten(0, 1), q.flatten(0, 1), ratios.flatten()).view(p.shape)
    return stops[..., None] * weights / weights.sum(dim=-1, keepdim=True)


def expected_acceptance(p: Tensor, q: Tensor, proposals: Tensor, lengths: Tensor) -> Tensor:
    """sum_x min(rho_i p, q) at every position: the probability that at least i + 1 proposals stay, given the first i.

    Its sum over a block drawn from q has the expectation of the accepted length. Arguments as for `verify`.

    Returns:
        float64[B, G], 0 at and past a round's length.
    """
    return _reduced(p, q, proposals, lengths)[1]


def verify(p: Tensor, q: Tensor, proposals: Tensor, lengths: Tensor, uniforms: Uniforms) -> tuple[Tensor, Tensor]:
    """Verifies a padded batch of rounds.

    Args:
        p: float[B, G+1, V], rows that sum to one; row i of a round is the target's distribution after i proposals. Rows
            past a round's length are ignored.
        q: float[B, G, V], row i the distribution that proposal i was drawn from.
        proposals: int64[B, G]; entries past a round's length may be any id in [0, V).
        lengths: int64[B], gamma of each round, in [0, G].
        uniforms: on the same device.

    Returns:
        Accepted counts int64[B], and the token after the accepted ones int64[B].
    """
    ratios, overlaps, q = _reduced(p, q, proposals, lengths)
    accepted = accepted_lengths(ratios, overlaps, uniforms.accept, lengths)
    rounds = torch.arange(len(p), device=p.device)
    weights = residual(p[rounds, accepted], q[rounds, accepted], ratios[rounds, accepted])
    return accepted, inverse_cdf(weights, uniforms.next)


def _reduced(p: Tensor, q: Tensor, proposals: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """rho [B, G+1], sum_x min(rho p, q) [B, G], and q with an empty row after each block's end [B, G+1, V]."""
    batch, height, vocab = p.shape
    p_x = p[:, : height - 1].gather(2, proposals[..., None])[..., 0]
    q_x = q.gather(2, proposals[..., None])[..., 0]
    ratios = joint_ratios(p_x, q_x, lengths)
    proposed = torch.arange(height, device=p.device) < lengths[:, None]
    padded = torch.cat([q.double(), q.new_zeros((batch, 1, vocab)).double()], dim=1)
    padded = torch.where(proposed[..., None], padded, 0.0)
    stretched = padded * stretch(ratios)[..., None]
    overlaps = ratios * token_rule.expected_acceptance(p.flatten(0, 1), stretched.flatten(0, 1)).view(batch, height)
    return ratios, overlaps[:, : height - 1], padded
