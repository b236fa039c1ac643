"""Trees of proposals: several candidates a position, each tried against what the ones before it left of p.

At a node whose children were drawn in order, child j from q_j, the token rule is applied again and again:

    r_0 = p;   accept x_j iff u_j * q_j(x_j) < r_{j-1}(x_j), strictly;   on a rejection r_j = (r_{j-1} - q_j)+ / Z_j.

The first child that is accepted is the next token and the walk goes on below it; where none is, or there are none, the
next token is drawn from what is left, r_k, and the walk ends. With q_j = q it is SpecInfer's multi-step rejection
sampling (Miao et al. 2023, arXiv 2305.09781); with q_j = q less the earlier siblings' tokens, renormalised, it is
sampling without replacement. The law is the target's as long as x_j was drawn from q_j whatever came before it;
docs/rules.md proves it.

Nodes: 0 is the end of the committed prefix, node i + 1 is proposal i. A parent's number is below its children's, and
siblings are numbered in the order they were drawn. Letters: N proposals, V vocabulary. Everything is float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from draftproof.sampling.inverse_cdf import inverse_cdf
from draftproof.verification import token_rule
from draftproof.verification.token_rule import SparseQ


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree of proposals.

    Attributes:
        tokens: N proposals.
        parents: the node that each hangs from, parents[i] in [0, i].

    Raises:
        ValueError: a parent that doesn't come before its child.
    """

    tokens: Sequence[int]
    parents: Sequence[int]

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.parents):
            raise ValueError(f"{len(self.tokens)} tokens but {len(self.parents)} parents")
        for i, parent in enumerate(self.parents):
            if not 0 <= parent <= i:
                raise ValueError(f"the parent of proposal {i} must be in [0, {i}], got {parent}")

    def children(self) -> list[list[int]]:
        """The nodes below each of the N + 1 nodes, in order."""
        below: list[list[int]] = [[] for _ in range(len(self.tokens) + 1)]
        for i, parent in enumerate(self.parents):
            below[parent].append(i + 1)
        return below

    def depths(self) -> list[int]:
        """How many proposals lead to each of the N + 1 nodes."""
        depths = [0]
        for parent in self.parents:
            depths.append(depths[parent] + 1)
        return depths

    def path(self, node: int) -> list[int]:
        """The nodes from the first below the root to `node` itself; none for the root."""
        nodes: list[int] = []
        while node:
            nodes.append(node)
            node = self.parents[node - 1]
        return nodes[::-1]


@dataclass(frozen=True, slots=True)
class Walk:
    """What became of a tree.

    Attributes:
        node: where it ended; the proposals on the way there are accepted.
        next_id: the token after them.
        tests: per child tried, in order: its node, sum_x min(r, q) over all tokens it could have been, and the
            probability its uniform was compared with.
        finite: False if p at `node` holds NaN or infinity; then `next_id` is no token.
    """

    node: int
    next_id: int
    tests: list[tuple[int, float, float]]
    finite: bool


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Probability of everything `verify` can do.

    Attributes:
        ends: float64[N+1, V], [n, x] of ending at node n and going on with x; sums to 1.
        tested: float64[N], of proposal i being tried.
        overlaps: float64[N], sum_x min(r, q) where it is.
    """

    ends: Tensor
    tested: Tensor
    overlaps: Tensor


def row_q(ids: Tensor, masses: Tensor) -> SparseQ:
    """The q of one proposal: int64[M] distinct ids, float64[M] masses that sum to one."""
    return SparseQ(torch.zeros_like(ids), ids, masses)


def excluding(q: Tensor, tokens: Sequence[int]) -> Tensor:
    """q of a child drawn without replacement, float64[V]: what is left of float64[V] without its earlier siblings.

    Raises:
        ValueError: nothing is left.
    """
    left = q.double().clone()
    left[list(tokens)] = 0.0
    total = left.sum()
    if not total > 0:
        raise ValueError("the earlier siblings take all of q")
    return left / total


def start(p: Tensor) -> Tensor:
    """r before any child is tried: p of one node normalised, float[V] -> float64[V]."""
    wide = p.double()
    return wide / wide.sum()


def left_over(r: Tensor, q: SparseQ) -> Tensor:
    """r after a rejection: (r - q)+ / Z, or r itself where Z underflows to 0; float64[V]."""
    weights = token_rule.residual(r[None], q)[0]
    return weights / weights.sum()


def verify(p: Tensor, tree: Tree, qs: Sequence[SparseQ], accept_u: Sequence[float], next_u: Sequence[float]) -> Walk:
    """Walks down one tree.

    Args:
        p: float[N+1, V], row n the target's distribution after node n's token; the rows of the walk alone are read.
        tree: the proposals.
        qs: what each was drawn from (`row_q`), on the same device.
        accept_u: N numbers in [0, 1), one per proposal.
        next_u: N + 1 numbers in [0, 1), for the token after each node.
    """
    below = tree.children()
    tests: list[tuple[int, float, float]] = []
    node = 0
    while True:
        r = start(p[node])
        if not bool(r.isfinite().all()):
            return Walk(node, 0, tests, finite=False)
        for child in below[node]:
            q, token = qs[child - 1], tree.tokens[child - 1]
            r_x, q_x = _at(r, q, token)
            overlap = token_rule.expected_acceptance(r[None], q).item()
            tests.append((child, overlap, token_rule.accept_probability(r_x, q_x).item()))
            u = torch.tensor(accept_u[child - 1], dtype=torch.float64, device=p.device)
            if bool(token_rule.accepts(r_x, q_x, u)):
                node = child
                break
            r = left_over(r, q)
        else:
            u = torch.tensor([next_u[node]], dtype=torch.float64, device=p.device)
            return Walk(node, int(inverse_cdf(r[None], u).item()), tests, finite=True)


def outcome_law(p: Tensor, tree: Tree, qs: Sequence[SparseQ]) -> Outcomes:
    """Probability of every outcome that `verify` can draw; same arguments, no uniforms."""
    below = tree.children()
    count = len(tree.tokens)
    ends = torch.zeros((count + 1, p.shape[1]), dtype=torch.float64)
    tested, overlaps = torch.zeros(count, dtype=torch.float64), torch.zeros(count, dtype=torch.float64)
    reached = [1.0] + [0.0] * count
    for node in range(count + 1):
        r, going = start(p[node]), reached[node]
        for child in below[node]:
            q = qs[child - 1]
            tested[child - 1] = going
            overlaps[child - 1] = token_rule.expected_acceptance(r[None], q)[0]
            chance = token_rule.accept_probability(*_at(r, q, tree.tokens[child - 1])).item()
            reached[child] = going * chance
            going *= 1.0 - chance
            r = left_over(r, q)
        ends[node] = going * r
    return Outcomes(ends, tested, overlaps)


def _at(r: Tensor, q: SparseQ, token: int) -> tuple[Tensor, Tensor]:
    """r and q of one token, float64 without dimensions."""
    return r[token], q.at(torch.tensor([token], device=r.device))[0]
