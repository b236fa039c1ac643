"""Trees over many rounds with the real generator: lattice draws without replacement, keyed by node, then the walk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from draftproof.sampling.draft_q import Lattice
from draftproof.sampling.rng import Draw, Purpose, derive_key, random_quads, unit
from draftproof.sampling.siblings import draw_sibling, remaining
from draftproof.testing.statistics import g_test
from draftproof.verification import tree_rule
from draftproof.verification.tree_rule import Tree
from tests.exact.enumeration import target_law

OUTPUTS = 2_000
TOKENS = 3
LEVEL = 1e-4
CAUGHT = 1e-6

# Row c: the next token's distribution after token c; row 3: after the prompt.
P = np.array([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.3, 0.6, 0.1], [0.4, 0.3, 0.3]])
COUNTS = np.array([[3, 4, 9], [8, 6, 2], [9, 2, 5], [4, 4, 8]])
LATTICES = [Lattice(4, np.arange(3), counts) for counts in COUNTS]
PARENTS = (0, 0, 1, 1, 2)

Layout = Callable[[Draw], Draw]


def served(layout: Layout) -> Counter[tuple[int, ...]]:
    """First tokens of many requests, all in step; `layout` says how the numbers are named."""
    keys = [derive_key(7, [0], index, 0) for index in range(OUTPUTS)]
    texts: list[list[int]] = [[] for _ in keys]
    depths = Tree([0] * len(PARENTS), PARENTS).depths()
    nodes = range(1, len(depths))
    while waiting := [i for i, text in enumerate(texts) if len(text) < TOKENS]:
        draws = []
        for i in waiting:
            begin = 1 + len(texts[i])
            draws += [Draw(keys[i], begin, depths[n] - 1, Purpose.DRAFT, n) for n in nodes]
            draws += [Draw(keys[i], begin, depths[n] - 1, Purpose.ACCEPT, n) for n in nodes]
            draws += [Draw(keys[i], begin, depths[n], Purpose.NEXT, n) for n in range(len(depths))]
        quads = random_quads([layout(d) for d in draws]).reshape(len(waiting), -1, 4)
        for i, numbers in zip(waiting, quads, strict=True):
            texts[i] += one_round(texts[i], numbers)
    return Counter(tuple(text[:TOKENS]) for text in texts)


def one_round(text: list[int], numbers: NDArray[np.uint64]) -> list[int]:
    count = len(PARENTS)
    contexts, tokens, qs = [text[-1] if text else 3], [], []
    for i, parent in enumerate(PARENTS):
        left = remaining(LATTICES[contexts[parent]], [t for t, p in zip(tokens, PARENTS, strict=False) if p == parent])
        tokens.append(draw_sibling(left, numbers[i].tolist()))
        qs.append(tree_rule.row_q(torch.from_numpy(left.ids), torch.from_numpy(left.masses)))
        contexts.append(tokens[-1])
    tree = Tree(tokens, PARENTS)
    u = unit(numbers[count:, 0]).tolist()
    walk = tree_rule.verify(torch.from_numpy(P[contexts]), tree, qs, u[:count], u[count:])
    return [*(tokens[n - 1] for n in tree.path(walk.node)), walk.next_id]


LAW = target_law(lambda prefix: P[prefix[-1] if prefix else 3], TOKENS, 3)


def test_outputs_follow_the_targets_law() -> None:
    assert g_test(served(lambda d: d), LAW).p_value > LEVEL


def _by_position(d: Draw) -> Draw:
    """Siblings share their numbers: no formula is wrong, and no enumeration sees it."""
    return replace(d, block_start=0, offset=d.block_start + d.offset, node=0)


def _test_by_the_draw(d: Draw) -> Draw:
    return replace(d, purpose=Purpose.DRAFT) if d.purpose is Purpose.ACCEPT else d


@pytest.mark.parametrize("wrong", [_by_position, _test_by_the_draw])
def test_numbers_used_twice_are_caught(wrong: Layout) -> None:
    found = g_test(served(wrong), LAW)
    assert found.p_value < CAUGHT
