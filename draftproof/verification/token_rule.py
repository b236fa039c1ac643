"""The token rule: which proposals stay, and what the token after them is drawn from.

    accept x ~ q iff u * q(x) < p(x), strictly;   on a rejection draw from (p - q)+ / Z, never from p or |p - q|.

Two halves. The *probabilities* (`accept_probability`, `residual`, `outcome_law`) say how likely each outcome is and can
be enumerated in float64. The *draw* (`accepts`, `accepted_lengths`, `verify`) turns uniforms into outcomes by
thresholds. They meet in `residual`, which both use, and in accepts(p, q, u) == (u < accept_probability(p, q)).

Letters: p target, q draft, B rounds, G the largest gamma, V vocabulary, N rows of p. Everything is computed in float64,
whatever the inputs' dtype, on the inputs' device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from draftproof.sampling.inverse_cdf import inverse_cdf


@dataclass(frozen=True, slots=True)
class SparseQ:
    """Some rows' q as coordinates; every (row, id) not listed has mass 0.

    Attributes:
        rows: int64[T], which row of p the entry belongs to.
        ids: int64[T], token ids, distinct within a row.
        masses: float64[T], >= 0.
    """

    rows: Tensor
    ids: Tensor
    masses: Tensor

    def at(self, tokens: Tensor) -> Tensor:
        """q(tokens[n]) for every row n.

        Args:
            tokens: int64[N].

        Returns:
            float64[N].
        """
        # At most one entry of a row matches, so the order of the additions can't matter.
        hits = torch.where(self.ids == tokens[self.rows], self.masses, 0.0)
        return torch.zeros(tokens.shape, dtype=torch.float64, device=tokens.device).index_add_(0, self.rows, hits)

    def select(self, rows: Tensor, total: int) -> SparseQ:
        """The q of chosen rows, renumbered in the order chosen.

        Args:
            rows: int64[B], distinct, in [0, total).
            total: N.
        """
        renumbered = torch.full((total,), -1, dtype=torch.int64, device=rows.device)
        renumbered[rows] = torch.arange(len(rows), device=rows.device)
        owners = renumbered[self.rows]
        kept = owners >= 0
        return SparseQ(owners[kept], self.ids[kept], self.masses[kept])


@dataclass(frozen=True, slots=True)
class Uniforms:
    """Random numbers of a batch of rounds, each in [0, 1).

    Attributes:
        accept: float64[B, G], one per proposal.
        next: float64[B], for the residual or the bonus.
    """

    accept: Tensor
    next: Tensor


def accept_probability(p_x: Tensor, q_x: Tensor) -> Tensor:
    """min(1, p(x) / q(x)): 0 where p(x) = 0, even if q(x) = 0 too.

    Args:
        p_x: p of the proposals, any shape.
        q_x: q of the proposals, the same shape.

    Returns:
        float64, the same shape.
    """
    p_x, q_x = p_x.double(), q_x.double()
    # Where p >= q > 0 the answer is 1 without a division; the denominator only has to be non-zero there.
    ratio = p_x / torch.where(q_x > p_x, q_x, 1.0)
    return torch.where(q_x > p_x, ratio, (p_x > 0).double())


def residual(p: Tensor, q: Tensor | SparseQ) -> Tensor:
    """Weights of the token after a rejection: (p - q)+, unnormalised; p itself for a row without any q.

    In exact arithmetic a rejection implies Z = sum (p - q)+ > 0. Where Z underflows to 0, p and q agree to the last bit
    and p is the answer.

    Args:
        p: float[B, V].
        q: float[B, V], or sparse over B rows.

    Returns:
        float64[B, V].
    """
    if isinstance(q, SparseQ):
        weights = p.to(torch.float64, copy=True)
        p_at = weights[q.rows, q.ids]
        weights[q.rows, q.ids] = (p_at - q.masses).clamp_(min=0.0)
    else:
        weights = p.double() - q
        weights.clamp_(min=0.0)
    vanished = weights.amax(dim=-1) == 0
    weights[vanished] = p[vanished].double()
    return weights


def expected_acceptance(p: Tensor, q: Tensor | SparseQ) -> Tensor:
    """sum_x min(p(x), q(x)): the probability that a proposal drawn from q is accepted, 1 - Z.

    Args:
        p: float[N, V].
        q: float[N, V], or sparse over N rows.

    Returns:
        float64[N].
    """
    if isinstance(q, SparseQ):
        overlap = torch.minimum(p[q.rows, q.ids].double(), q.masses)
        return torch.zeros(len(p), dtype=torch.float64, device=p.device).index_add_(0, q.rows, overlap)
    return torch.minimum(p.double(), q.double()).sum(dim=-1)


def outcome_law(p: Tensor, q: Tensor | SparseQ, proposals: Tensor, lengths: Tensor) -> Tensor:
    """Probability of every outcome that `verify` can draw; same arguments, no uniforms.

    Returns:
        float64[B, G+1, V]: [b, k, x] is the probability that round b accepts exactly k proposals and goes on with x.
        Each round sums to 1.
    """
    batch, height, vocab = p.shape
    proposed = torch.arange(height, device=p.device) < lengths[:, None]
    p_x, q_x = _at_proposals(p, q, proposals)
    # Past the last proposal the chain stops for sure: "acceptance" 0 there.
    accept = torch.where(proposed[:, :-1], accept_probability(p_x, q_x), 0.0)
    end = torch.zeros((batch, 1), dtype=torch.float64, device=p.device)
    reached = torch.cat([end + 1.0, accept.cumprod(dim=1)], dim=1)
    stops = reached * (1.0 - torch.cat([accept, end], dim=1))
    if not isinstance(q, SparseQ):
        q = torch.cat([q, q.new_zeros((batch, 1, vocab))], dim=1)
        q = torch.where(proposed[..., None], q, 0.0).flatten(0, 1)
    weights = residual(p.flatten(0, 1), q).view(batch, height, vocab)
    return stops[..., None] * weights / weights.sum(dim=-1, keepdim=True)


def accepts(p_x: Tensor, q_x: Tensor, u: Tensor) -> Tensor:
    """u * q(x) < p(x), strictly: with `<=` a token of p(x) = 0 would pass at u = 0.

    Args:
        p_x, q_x, u: any one shape.

    Returns:
        bool, the same shape; False where anything is NaN.
    """
    return u.double() * q_x.double() < p_x.double()


def accepted_lengths(p_x: Tensor, q_x: Tensor, u: Tensor, lengths: Tensor) -> Tensor:
    """How many leading proposals of each round are accepted.

    Args:
        p_x, q_x, u: [B, G]; entries at or past a round's length are ignored.
        lengths: int64[B], each in [0, G].

    Returns:
        int64[B].
    """
    steps = torch.arange(p_x.shape[1], device=p_x.device)
    passed = accepts(p_x, q_x, u) & (steps < lengths[:, None])
    return passed.long().cumprod(dim=1).sum(dim=1)


def verify(
    p: Tensor, q: Tensor | SparseQ, proposals: Tensor, lengths: Tensor, uniforms: Uniforms
) -> tuple[Tensor, Tensor]:
    """Verifies a padded batch of rounds.

    Args:
        p: float[B, G+1, V]; row i of a round is the target's distribution after i proposals. Rows past a round's length
            are ignored.
        q: float[B, G, V], row i the distribution that proposal i was drawn from; or sparse over the B * (G+1) rows of p
            in row-major order, without entries at or past a round's length.
        proposals: int64[B, G]; entries past a round's length may be any id in [0, V).
        lengths: int64[B], gamma of each round, in [0, G].
        uniforms: on the same device.

    Returns:
        Accepted counts int64[B], and the token after the accepted ones int64[B].
    """
    batch, height, vocab = p.shape
    rounds = torch.arange(batch, device=p.device)
    p_x, q_x = _at_proposals(p, q, proposals)
    accepted = accepted_lengths(p_x, q_x, uniforms.accept, lengths)
    p_next = p[rounds, accepted]
    # With nothing proposed q is 0 and the residual is p: the bonus token needs no case of its own.
    if isinstance(q, SparseQ):
        q_next: Tensor | SparseQ = q.select(rounds * height + accepted, batch * height)
    else:
        q_next = torch.zeros((batch, vocab), dtype=torch.float64, device=p.device)
        rejected = accepted < lengths
        q_next[rejected] = q[rounds[rejected], accepted[rejected]].double()
    return accepted, inverse_cdf(residual(p_next, q_next), uniforms.next)


def _at_proposals(p: Tensor, q: Tensor | SparseQ, proposals: Tensor) -> tuple[Tensor, Tensor]:
    """p and q of the proposals, both [B, G]."""
    batch, height, _ = p.shape
    p_x = p[:, : height - 1].gather(2, proposals[..., None])[..., 0]
    if isinstance(q, SparseQ):
        padded = torch.cat([proposals, proposals.new_zeros((batch, 1))], dim=1)
        return p_x, q.at(padded.flatten()).view(batch, height)[:, : height - 1]
    return p_x, q.gather(2, proposals[..., None])[..., 0]
