"""Which nodes of a proposed tree are verified, and as what: integer work done before the forward pass.

As for chains (`verification.intake`), but every draw can be repeated: q is a lattice or one-hot. The nodes come in the
order they were drawn in, so a tree that ends before or after one of them is one that stopped growing there:

- q is missing, malformed, of another form, or used up by earlier siblings: the tree ends before that node.
- The draw that q and the request's key give differs from the sent token: it takes its place and the tree ends after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from draftproof.sampling.draft_q import DraftQ, Lattice, MalformedQError, OneHot
from draftproof.sampling.rng import Draw, Purpose, random_quads
from draftproof.sampling.siblings import Remaining, draw_sibling, remaining
from draftproof.verification.intake import Grown, Intake, RefusalKind, RefusalNote
from draftproof.verification.tree_rule import Tree


@dataclass(frozen=True, slots=True)
class SentNode:
    """A proposal of a tree as it arrived.

    Attributes:
        token_id: the token said to be drawn, any integer.
        parent: the node it hangs from, in [0, i] for the i-th; 0 is the end of the committed text.
        q: what it is said to be drawn from, validated for the vocabulary; or what was wrong with it; or None: what the
            siblings before it leave of the last q that came with one of them.
    """

    token_id: int
    parent: int
    q: DraftQ | MalformedQError | None


def admit_tree(sent: Sequence[SentNode], key: bytes, block_start: int, check_draws: bool = True) -> Intake:
    """Decides which nodes of a tree are verified, and as what.

    Args:
        sent: the nodes in the order they were drawn in.
        key: the request's key.
        block_start: position of the first proposal, counted from the start of the original prompt.
        check_draws: recompute every draw. Without it a token that its q has is believed.
    """
    tree = Tree([node.token_id for node in sent], [node.parent for node in sent])
    draws = [Draw(key, block_start, depth - 1, Purpose.DRAFT, node) for node, depth in enumerate(tree.depths()) if node]
    words = random_quads(draws) if sent else np.empty((0, 4), np.uint64)
    tokens: list[int] = []
    qs: list[Remaining] = []
    siblings: dict[int, _Siblings] = {}
    refusal, lossless = None, True
    for offset, node in enumerate(sent):
        before = siblings.get(node.parent)
        if node.q is not None or before is None:
            before = siblings[node.parent] = _Siblings(node.q, [])
        try:
            left = before.left()
        except MalformedQError as error:
            refusal = RefusalNote(offset, RefusalKind.MALFORMED_Q, str(error))
            break
        own = draw_sibling(left, words[offset].tolist()) if check_draws else node.token_id
        if own not in left.ids:
            message = f"q has no mass at the sent token {own}"
            refusal, lossless = RefusalNote(offset, RefusalKind.ZERO_MASS, message), False
            break
        tokens.append(own)
        qs.append(left)
        before.tokens.append(own)
        if own != node.token_id:
            message = f"sent token {node.token_id}, but q and the request's key give {own}"
            refusal = RefusalNote(offset, RefusalKind.DRAW_MISMATCH, message)
            break
    return Intake(tokens, [], refusal, lossless, Grown(tree.parents[: len(tokens)], qs) if tokens else None)


@dataclass(frozen=True, slots=True)
class _Siblings:
    """The last q that came with a child of a node, and the tokens drawn from it."""

    q: DraftQ | MalformedQError | None
    tokens: list[int]

    def left(self) -> Remaining:
        match self.q:
            case Lattice():
                return remaining(self.q, self.tokens)
            case OneHot(token_id):
                if self.tokens:
                    raise MalformedQError("the earlier siblings take all of q")
                return Remaining(np.array([token_id]), np.array([1]), 1)
            case MalformedQError():
                raise self.q
            case None:
                raise MalformedQError("no q, and no sibling before it has one")
            case _:
                raise MalformedQError("a tree takes lattice or one-hot q")
