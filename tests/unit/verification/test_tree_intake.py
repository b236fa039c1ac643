"""What of a tree is verified: draws that can be repeated, siblings without replacement, and where a tree ends."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from draftproof.sampling.draft_q import Dense, DraftQ, Lattice, MalformedQError, OneHot, Sparse
from draftproof.sampling.rng import Draw, Purpose, random_quads
from draftproof.sampling.siblings import draw_sibling, remaining
from draftproof.verification.intake import RefusalKind
from draftproof.verification.tree_intake import SentNode, admit_tree
from draftproof.verification.tree_rule import Tree

KEY = bytes(range(32))
START = 9
PARENTS = (0, 0, 1, 1, 2)
Q = Lattice(4, np.array([1, 4, 6]), np.array([7, 5, 4]))
OTHER = Lattice(3, np.array([0, 2]), np.array([5, 3]))


def draw(q: Lattice, drawn: Sequence[int], node: int, depth: int) -> int:
    (words,) = random_quads([Draw(KEY, START, depth - 1, Purpose.DRAFT, node)]).tolist()
    return draw_sibling(remaining(q, drawn), words)


def honest() -> list[SentNode]:
    """Two children of the root from Q, two of the first from OTHER, one of the second from Q."""
    tokens: list[int] = []
    nodes: list[SentNode] = []
    depths = Tree([0] * len(PARENTS), PARENTS).depths()
    for i, parent in enumerate(PARENTS):
        q = OTHER if parent == 1 else Q
        siblings = [t for t, p in zip(tokens, PARENTS, strict=False) if p == parent]
        tokens.append(draw(q, siblings, i + 1, depths[i + 1]))
        nodes.append(SentNode(tokens[-1], parent, None if siblings else q))
    return nodes


def change(nodes: list[SentNode], index: int, **fields: object) -> list[SentNode]:
    found = list(nodes)
    node = found[index]
    values = {"token_id": node.token_id, "parent": node.parent, "q": node.q} | fields
    found[index] = SentNode(**values)  # type: ignore[arg-type]
    return found


def test_an_honest_tree_is_verified_as_sent() -> None:
    nodes = honest()
    taken = admit_tree(nodes, KEY, START)
    assert taken.tokens == [node.token_id for node in nodes]
    assert taken.tree is not None
    assert tuple(taken.tree.parents) == PARENTS
    assert (taken.refusal, taken.lossless, taken.qs) == (None, True, [])
    assert [left.total for left in taken.tree.qs[:1]] == [16]
    first = taken.tokens[0]
    second = taken.tree.qs[1]
    assert first not in second.ids
    assert second.total == 16 - int(Q.counts[Q.ids == first][0])


@pytest.mark.parametrize("index", range(len(PARENTS)))
def test_a_draw_that_differs_is_replaced_and_ends_the_tree(index: int) -> None:
    nodes = honest()
    taken = admit_tree(change(nodes, index, token_id=nodes[index].token_id + 1), KEY, START)
    assert taken.tokens == [node.token_id for node in nodes[: index + 1]]
    assert taken.refusal is not None
    assert (taken.refusal.offset, taken.refusal.kind) == (index, RefusalKind.DRAW_MISMATCH)
    assert taken.lossless


def test_numbers_belong_to_nodes() -> None:
    """Siblings that swap their places are draws of each other's numbers."""
    deep = Lattice(10, np.arange(64), np.full(64, 16))
    first, second = (SentNode(draw(deep, [], node, 1), 0, deep) for node in (1, 2))
    assert admit_tree([first, second], KEY, START).refusal is None
    swapped = admit_tree([second, first], KEY, START)
    assert swapped.refusal is not None
    assert swapped.refusal.kind is RefusalKind.DRAW_MISMATCH


@pytest.mark.parametrize(
    ("index", "q", "words"),
    [
        (2, None, "no q, and no sibling before it has one"),
        (4, Sparse(np.array([1]), np.array([1.0], np.float32)), "lattice or one-hot"),
        (1, Dense(np.full(8, 0.125, np.float32)), "lattice or one-hot"),
        (3, MalformedQError("masses are not finite"), "not finite"),
    ],
)
def test_a_q_that_is_missing_or_of_another_form_ends_the_tree_before_it(
    index: int, q: DraftQ | MalformedQError | None, words: str
) -> None:
    nodes = honest()
    taken = admit_tree(change(nodes, index, q=q), KEY, START)
    assert taken.tokens == [node.token_id for node in nodes[:index]]
    assert taken.refusal is not None
    assert (taken.refusal.offset, taken.refusal.kind) == (index, RefusalKind.MALFORMED_Q)
    assert words in taken.refusal.message


def test_more_siblings_than_q_has_tokens_end_the_tree() -> None:
    pair = [draw(OTHER, [], 1, 1)]
    pair.append(draw(OTHER, pair, 2, 1))
    nodes = [SentNode(pair[0], 0, OTHER), SentNode(pair[1], 0, None), SentNode(0, 0, None)]
    taken = admit_tree(nodes, KEY, START)
    assert taken.tokens == pair
    assert taken.refusal is not None
    assert "take all of q" in taken.refusal.message


def test_one_hot_siblings_need_no_draw() -> None:
    taken = admit_tree([SentNode(5, 0, OneHot(5)), SentNode(3, 0, OneHot(3)), SentNode(7, 2, OneHot(7))], KEY, START)
    assert (taken.tokens, taken.refusal) == ([5, 3, 7], None)
    assert taken.tree is not None
    assert [left.masses.tolist() for left in taken.tree.qs] == [[1.0]] * 3
    left = admit_tree([SentNode(5, 0, OneHot(5)), SentNode(3, 0, None)], KEY, START)
    assert left.refusal is not None
    assert left.refusal.kind is RefusalKind.MALFORMED_Q


def test_nothing_sent_is_no_tree() -> None:
    assert admit_tree([], KEY, START).tree is None


def test_unchecked_draws_are_believed_where_q_has_the_token() -> None:
    nodes = honest()
    free = next(int(t) for t in Q.ids if t != nodes[0].token_id)
    assert admit_tree(change(nodes, 0, token_id=free), KEY, START, check_draws=False).tokens[0] == free
    none = admit_tree(change(nodes, 0, token_id=3), KEY, START, check_draws=False)
    assert none.refusal is not None
    assert (none.refusal.kind, none.lossless) == (RefusalKind.ZERO_MASS, False)
