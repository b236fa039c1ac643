"""Exact laws of tree rounds: every tree a drafter may draw after a prefix, every way a verdict may end in it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch

from draftproof.verification import tree_rule
from draftproof.verification.token_rule import SparseQ
from draftproof.verification.tree_rule import Outcomes, Tree
from tests.exact.enumeration import Law, Prefix, Table, Vector

Grow = Callable[[Prefix, Prefix, Prefix, tuple[Vector, ...]], int | None]
"""(prefix, tokens, parents, q of each) -> the node that the next proposal hangs from, or None to end the tree."""
Sibling = Callable[[Vector, Sequence[int]], Vector | None]
"""(q of the parent's place, earlier siblings' tokens) -> what the next child is drawn from; None: nothing is left."""


@dataclass(frozen=True)
class DrawnTree:
    """One tree that may be verified after a prefix."""

    probability: float
    tree: Tree
    qs: tuple[Vector, ...]


def shape(*parents: int) -> Grow:
    """A tree decided on beforehand."""
    return lambda prefix, tokens, hung, qs: parents[len(tokens)] if len(tokens) < len(parents) else None


def with_replacement(q: Vector, drawn: Sequence[int]) -> Vector:
    """Children independent of one another."""
    return q


def without_replacement(q: Vector, drawn: Sequence[int]) -> Vector | None:
    """Children all different."""
    if q.sum() - q[list(drawn)].sum() <= 1e-9:
        return None
    return tree_rule.excluding(torch.from_numpy(q), drawn).numpy()


def context(tree: Tree, node: int) -> Prefix:
    """The proposals that lead to a node."""
    return tuple(tree.tokens[n - 1] for n in tree.path(node))


def trees(prefix: Prefix, q: Table, grow: Grow, sibling: Sibling, drawn: Sibling | None = None) -> Iterator[DrawnTree]:
    """All trees of one round; `drawn`: what children really come from, where it isn't what is sent."""

    def extend(found: DrawnTree) -> Iterator[DrawnTree]:
        tokens, parents = tuple(found.tree.tokens), tuple(found.tree.parents)
        parent = grow(prefix, tokens, parents, found.qs)
        row = None
        if parent is not None:
            place = q(prefix + context(found.tree, parent))
            earlier = [token for token, p in zip(tokens, parents, strict=True) if p == parent]
            row = sibling(place, earlier)
        if parent is None or row is None:
            yield found
            return
        truth = row if drawn is None else drawn(place, earlier)
        assert truth is not None
        for token, probability in enumerate(truth.tolist()):
            if probability > 0:
                tree = Tree((*tokens, token), (*parents, parent))
                yield from extend(DrawnTree(found.probability * probability, tree, (*found.qs, row)))

    yield from extend(DrawnTree(1.0, Tree((), ()), ()))


def outcomes(p: Table, prefix: Prefix, found: DrawnTree) -> Outcomes:
    """What the rule makes of one tree."""
    rows = np.stack([p(prefix + context(found.tree, node)) for node in range(len(found.qs) + 1)])
    return tree_rule.outcome_law(torch.from_numpy(rows), found.tree, [sent(q) for q in found.qs])


def sent(q: Vector) -> SparseQ:
    """q as the rule takes it."""
    ids = np.flatnonzero(q)
    return tree_rule.row_q(torch.from_numpy(ids), torch.from_numpy(q[ids]))


def round_law(p: Table, prefix: Prefix, drawn: Iterator[DrawnTree]) -> Law:
    """Law of what one round commits."""
    law: dict[Prefix, float] = defaultdict(float)
    for found in drawn:
        ends = outcomes(p, prefix, found).ends.numpy()
        for node, token in np.argwhere(ends != 0).tolist():
            law[(*context(found.tree, node), token)] += found.probability * float(ends[node, token])
    return law


def completed(law: Law, p: Table, prefix: Prefix, tokens: int, vocab: int) -> Law:
    """The law of `tokens` tokens if what a round leaves open comes from the target.

    It is the target's for every prefix and `tokens` iff rounds of this kind are exact, whatever follows them.
    """
    full: dict[Prefix, float] = defaultdict(float)
    for committed, probability in law.items():
        for rest in product(range(vocab), repeat=max(0, tokens - len(committed))):
            text, share = (committed + rest)[:tokens], probability
            for i in range(len(committed), tokens):
                share *= float(p(prefix + text[:i])[text[i]])
            full[text] += share
    return full
