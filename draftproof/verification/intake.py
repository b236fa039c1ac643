"""What of a sent block goes into the batch: integer work done before the forward pass.

Four ways in which a block can be less than what was sent:

- q is missing or malformed: the block ends before that position. Whether q is well formed doesn't depend on the token
  drawn from it, so this biases nothing.
- A draw that the target can repeat (lattice, one-hot) differs from the sent token: the target's own draw takes its
  place and the block ends after it. The own draw does come from q, so the law stays exact.
- The draft was caught lying by the audit: nothing it proposes is taken.
- A float q gives the sent token no mass: it can't have been drawn from it, and nothing can mend that. The block ends
  before it and the request is no longer lossless.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from draftproof.sampling.draft_q import DraftQ, Lattice, MalformedQError, OneHot, draw, mass
from draftproof.sampling.rng import Draw, Purpose, random_words
from draftproof.sampling.siblings import Remaining


class RefusalKind(IntEnum):
    """Why a position wasn't verified as sent; numbers as on the wire."""

    MALFORMED_Q = 1
    DRAW_MISMATCH = 2
    ZERO_MASS = 3
    QUARANTINED = 4


@dataclass(frozen=True, slots=True)
class RefusalNote:
    """The first position that wasn't verified as sent.

    Attributes:
        offset: in the block, 0-based.
        kind: what was wrong.
        message: one sentence for a person.
    """

    offset: int
    kind: RefusalKind
    message: str


@dataclass(frozen=True, slots=True)
class Sent:
    """A proposal as it arrived.

    Attributes:
        token_id: the token said to be drawn, any integer.
        q: what it is said to be drawn from, validated for the vocabulary; or what was wrong with it.
    """

    token_id: int
    q: DraftQ | MalformedQError


@dataclass(frozen=True, slots=True)
class Grown:
    """How the proposals of a block form a tree.

    Attributes:
        parents: the node that each hangs from; node 0 is the end of the committed text, node i + 1 proposal i.
        qs: what each was drawn from.
    """

    parents: Sequence[int]
    qs: Sequence[Remaining]


@dataclass(frozen=True, slots=True)
class Intake:
    """The block to verify.

    Attributes:
        tokens: proposals, each in [0, V).
        qs: the distribution of each, same length; empty for a coupled round and for a tree.
        refusal: what kept the block from being verified as sent, if anything.
        lossless: False if the draft was dishonest in a way that can't be mended.
        tree: set where the proposals form one.
    """

    tokens: list[int]
    qs: list[DraftQ]
    refusal: RefusalNote | None
    lossless: bool
    tree: Grown | None = None


def admit(sent: Sequence[Sent], key: bytes, block_start: int, vocab_size: int, check_draws: bool = True) -> Intake:
    """Decides which proposals of a block are verified, and as what.

    Args:
        sent: the proposals in order.
        key: the request's key.
        block_start: position of the first proposal, counted from the start of the original prompt.
        vocab_size: V.
        check_draws: recompute every lattice draw. Without it a lattice is believed as a float q is.
    """
    words = _draft_words(sent, key, block_start) if check_draws else {}
    tokens: list[int] = []
    qs: list[DraftQ] = []
    for offset, proposal in enumerate(sent):
        q, token = proposal.q, proposal.token_id
        if isinstance(q, MalformedQError):
            return Intake(tokens, qs, RefusalNote(offset, RefusalKind.MALFORMED_Q, str(q)), True)
        own = _own_draw(q, words.get(offset))
        if own is None and (not 0 <= token < vocab_size or mass(q, token) == 0.0):
            message = f"q has no mass at the sent token {token}"
            return Intake(tokens, qs, RefusalNote(offset, RefusalKind.ZERO_MASS, message), False)
        tokens.append(token if own is None else own)
        qs.append(q)
        if own is not None and own != token:
            message = f"sent token {token}, but q and the request's key give {own}"
            return Intake(tokens, qs, RefusalNote(offset, RefusalKind.DRAW_MISMATCH, message), True)
    return Intake(tokens, qs, None, True)


def admit_ids(tokens: Sequence[int], vocab_size: int) -> Intake:
    """The block of a coupled round, which has no q: any token in the vocabulary may stand to be compared."""
    for offset, token in enumerate(tokens):
        if not 0 <= token < vocab_size:
            message = f"sent token {token} is not in [0, {vocab_size})"
            return Intake(list(tokens[:offset]), [], RefusalNote(offset, RefusalKind.MALFORMED_Q, message), True)
    return Intake(list(tokens), [], None, True)


def _draft_words(sent: Sequence[Sent], key: bytes, block_start: int) -> dict[int, int]:
    offsets = [offset for offset, proposal in enumerate(sent) if isinstance(proposal.q, Lattice)]
    if not offsets:
        return {}
    words = random_words([Draw(key, block_start, offset, Purpose.DRAFT) for offset in offsets])
    return {offset: int(word) for offset, word in zip(offsets, words, strict=True)}


def _own_draw(q: DraftQ, word: int | None) -> int | None:
    """The token that q gives, or None where only the draft can know."""
    if isinstance(q, OneHot):
        return q.token_id
    return None if word is None else draw(q, word)
