"""Growing a tree of proposals, level by level: how many children each node gets, and their draws.

Both are decided in this order. How many follows from the depth and from q alone, before any of them is drawn (L6);
siblings are then drawn one after the other from what the earlier ones left of q's counts (`sampling.siblings`), so that
the target can repeat it. Where q is certain, at temperature 0, there is nothing to draw: the siblings are the likeliest
tokens, each with a one-hot q of its own, which is lawful for any token chosen without the target's numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from draft_service.drafters.interface import OpenBlock
from draftproof.sampling.draft_q import Lattice, OneHot, quantise
from draftproof.sampling.rng import Draw, Purpose, random_quads
from draftproof.sampling.siblings import draw_sibling, remaining
from draftproof.serving.drafting import Proposal


@dataclass(frozen=True, slots=True)
class TreeShape:
    """What trees look like.

    Attributes:
        widths: children of each node, by its depth; the tree is at most as deep as this is long.
        entries: most tokens that a lattice keeps.
        bits: k of its 2^k.
    """

    widths: tuple[int, ...] = (3, 2, 1)
    entries: int = 128
    bits: int = 10


@dataclass(frozen=True, slots=True)
class Bud:
    """A node that may get children: its row of q and of the logits it comes from."""

    block: OpenBlock
    node: int
    row: int


def grow(buds: Sequence[Bud], q: Tensor, logits: Tensor, shape: TreeShape, branching: bool = True) -> None:
    """Draws the next level of each block's tree.

    Args:
        buds: the frontier of some blocks, each block's together; those without a usable q are left out.
        q: float[N, V].
        logits: float[N, V].
        shape: what trees look like.
        branching: whether a node may have more than one child.
    """
    lattices = quantise(q[[bud.row for bud in buds]], shape.entries, shape.bits)
    rooms = {bud.block: bud.block.sequence.room - len(bud.block.proposals) for bud in buds}
    numbers = {bud.block: len(bud.block.proposals) for bud in buds}
    counts: list[int] = []
    draws: list[Draw] = []
    for bud, lattice in zip(buds, lattices, strict=True):
        block, sequence = bud.block, bud.block.sequence
        width = shape.widths[block.depth] if branching else 1
        count = min(width, rooms[block], width if sequence.params.greedy else len(lattice.ids))
        draws += [
            Draw(sequence.key, sequence.position, block.depth, Purpose.DRAFT, numbers[block] + i + 1)
            for i in range(count)
        ]
        rooms[block] -= count
        numbers[block] += count
        counts.append(count)
    words = iter(random_quads(draws).tolist())
    children: dict[OpenBlock, list[Proposal]] = {bud.block: [] for bud in buds}
    for bud, lattice, count in zip(buds, lattices, counts, strict=True):
        quads = [next(words) for _ in range(count)]
        if bud.block.sequence.params.greedy:
            children[bud.block] += _likeliest(bud, lattice, logits[bud.row], count)
        else:
            children[bud.block] += _drawn(bud, lattice, quads)
    for block, proposals in children.items():
        first = len(block.proposals) + 1
        block.proposals += proposals
        block.frontier = list(range(first, first + len(proposals)))
        if proposals:
            block.depth += 1
        if not proposals or block.depth == len(shape.widths):
            block.ended = True


def _drawn(bud: Bud, lattice: Lattice, quads: Sequence[Sequence[int]]) -> list[Proposal]:
    tokens: list[int] = []
    for words in quads:
        tokens.append(draw_sibling(remaining(lattice, tokens), words))
    q = OneHot(tokens[0]) if len(lattice.ids) == 1 else lattice
    return [Proposal(token, None if i else q, parent=bud.node) for i, token in enumerate(tokens)]


def _likeliest(bud: Bud, lattice: Lattice, logits: Tensor, count: int) -> list[Proposal]:
    """The argmax that q stands for, then the others in the order of their logits."""
    best = int(lattice.ids[0])
    ranked = logits.topk(min(count, len(logits)))
    others = [int(t) for t in ranked.indices[torch.isfinite(ranked.values)] if int(t) != best]
    return [Proposal(token, OneHot(token), parent=bud.node) for token in [best, *others][:count]]
