"""A tree's part in a batch of rounds: from its rows of p and its numbers to what a verdict says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from draftproof.sampling.rng import Draw, Purpose, uniforms
from draftproof.verification import tree_rule
from draftproof.verification.intake import Grown
from draftproof.verification.records import PositionRecord, p_masses, q_masses
from draftproof.verification.tree_rule import Tree


@dataclass(frozen=True, slots=True)
class Climb:
    """What became of a tree.

    Attributes:
        path: the accepted nodes, from the first below the root; node i + 1 is proposal i.
        next_id: the token after them; no token where p there holds NaN or infinity.
        rejected: whether children of the last node were tried and none held; else it has none.
        widths: proposals at each depth.
        tried: per position reached that has proposals, the last one tried: its node, and what its number was compared
            with.
        overlaps: at each of these positions, the probability that one of the proposals tried would hold, as far as
            they were tried: sum_x min(r, q) over them.
        next_u: the number that drew the next token.
    """

    path: list[int]
    next_id: int
    rejected: bool
    widths: list[int]
    tried: list[tuple[int, float]]
    overlaps: list[float]
    next_u: float


def accept_draws(key: bytes, block_start: int, tokens: Sequence[int], grown: Grown) -> list[Draw]:
    """Where the number of each node's test belongs; that of node 0 is never used."""
    depths = Tree(tokens, grown.parents).depths()
    return [Draw(key, block_start, max(0, depth - 1), Purpose.ACCEPT, node) for node, depth in enumerate(depths)]


def climb(p: Tensor, key: bytes, block_start: int, tokens: Sequence[int], grown: Grown, accept_u: Tensor) -> Climb:
    """Walks down one tree; see `tree_rule.verify`.

    Args:
        p: float[N+1, V], row n the distribution after node n.
        key: the request's key.
        block_start: position of the first proposal.
        tokens: N proposals.
        grown: how they hang together.
        accept_u: float64[N+1], by node.
    """
    tree = Tree(tokens, grown.parents)
    depths = tree.depths()
    next_u = uniforms([Draw(key, block_start, depth, Purpose.NEXT, node) for node, depth in enumerate(depths)])
    qs = [tree_rule.row_q(*(torch.from_numpy(a).to(p.device) for a in (left.ids, left.masses))) for left in grown.qs]
    walk = tree_rule.verify(p, tree, qs, accept_u[1:].tolist(), next_u.tolist())
    reached = len({depths[node] for node, _, _ in walk.tests})
    tried = [(0, 0.0)] * reached
    overlaps = [0.0] * reached
    for node, overlap, chance in walk.tests:
        tried[depths[node] - 1] = (node, chance)
        overlaps[depths[node] - 1] += overlap
    return Climb(
        path=tree.path(walk.node),
        next_id=walk.next_id,
        rejected=walk.node in grown.parents,
        widths=np.bincount(depths)[1:].tolist(),
        tried=tried,
        overlaps=overlaps,
        next_u=float(next_u[walk.node]),
    )


def tree_trace(
    climb: Climb,
    tokens: Sequence[int],
    grown: Grown,
    p: Tensor,
    totals: Tensor,
    accept_u: Tensor,
    block_start: int,
    top: int,
) -> list[PositionRecord]:
    """One record per committed token.

    Args:
        climb: what became of the tree.
        tokens, grown: the tree.
        p: float[N+1, V], by node.
        totals: float64[N+1], their sums.
        accept_u: float64[N+1], by node.
        block_start: position of the first proposal.
        top: masses to record per position; 0: all.
    """
    records = []
    for i, row in enumerate((0, *climb.path)):
        node, chance = climb.tried[i] if i < len(climb.tried) else (None, None)
        accepted = i < len(climb.path)
        token = None if node is None else tokens[node - 1]
        left = None if node is None else grown.qs[node - 1]
        records.append(
            PositionRecord(
                position=block_start + i,
                block_start=block_start,
                proposed_id=token,
                accepted=accepted,
                accept_uniform=None if node is None else float(accept_u[node]),
                accept_probability=chance,
                draw_uniform=None if accepted else climb.next_u,
                p_proposed=0.0 if token is None else float(p[row, token].double() / totals[row]),
                q_proposed=0.0 if left is None else float(left.masses[left.ids == token].sum()),
                p=p_masses(p[row], top),
                q=None if left is None else q_masses(left.ids, left.masses, top, p.shape[1]),
            )
        )
    return records
