"""The small interface behind which drafters differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from draftproof.engine.interface import Update
from draftproof.sampling.rng import Draw
from draftproof.serving.drafting import DraftSequence, Proposal


@dataclass(eq=False, slots=True)
class OpenBlock:
    """A block being drafted.

    Attributes:
        sequence: the request; its committed tokens don't change while the block is open. Of a block drafted ahead, what
            the request will be if the guess about the verdict is right.
        gamma: most proposals, or the depth of a tree.
        proposals: drawn so far, in order.
        depth: levels of a tree drawn so far; 0 in a chain.
        frontier: the nodes of the last level that may have children; node 0 is the end of the text.
        ended: no more will come, decided before the next draw (L6).
        ahead_of: the request itself, where the block is drafted ahead of a verdict.
        certain: tokens of the sequence that are committed; those behind them are guessed.
        guess: the draw that gives the last token of a guessed prefix, until the model has been asked for it.
        lost: a block drafted ahead that came to nothing.
    """

    sequence: DraftSequence
    gamma: int
    proposals: list[Proposal] = field(default_factory=list)
    ended: bool = False
    ahead_of: DraftSequence | None = None
    certain: int = -1
    guess: Draw | None = None
    lost: bool = False
    depth: int = 0
    frontier: list[int] = field(default_factory=lambda: [0])

    def __post_init__(self) -> None:
        if self.certain < 0:
            self.certain = self.sequence.position

    @property
    def done(self) -> bool:
        """Whether the block can be sent."""
        return self.ended or (self.depth or len(self.proposals)) >= self.gamma

    @property
    def drawn(self) -> list[Proposal]:
        """What to send."""
        return self.proposals if self.depth else self.proposals[: self.gamma]

    def path(self, node: int) -> list[int]:
        """Tokens of the proposals from the text's end to a node, the i-th proposal being node i."""
        tokens = []
        while node:
            proposal = self.proposals[node - 1]
            tokens.append(proposal.token_id)
            node = node - 1 if proposal.parent is None else proposal.parent
        return tokens[::-1]


@dataclass(frozen=True, slots=True)
class Guess:
    """What a verdict may turn out to be.

    Attributes:
        accepted: leading proposals that hold.
        token: the token after them; None: after a block that holds throughout, the model is yet to be asked.
    """

    accepted: int
    token: int | None


class Drafter(Protocol):
    """Draws proposals for many blocks at once. One thread owns it."""

    name: str
    width: int
    """Most blocks a step takes."""

    @property
    def weights_sha256(self) -> bytes:
        """Empty for a drafter without weights."""
        ...

    @property
    def forward_ns(self) -> int:
        """Time spent in the model so far, nanoseconds."""
        ...

    def step(self, blocks: Sequence[OpenBlock]) -> None:
        """Advances each block: by one or more proposals, by a part of its prompt, or to its end."""
        ...

    def guesses(self, sequence: DraftSequence, position: int, proposals: Sequence[Proposal]) -> list[Guess]:
        """Verdicts to draft ahead for; none where drafting takes no time anyway.

        Args:
            sequence: the request; its committed tokens may change meanwhile and are not read.
            position: where the block that is out began.
            proposals: its proposals.
        """
        ...

    def release(self, sequence: DraftSequence) -> None:
        """Forgets a sequence."""
        ...

    def install(self, update: Update) -> None:
        """Goes on with other weights; nothing cached under the old ones is left. What is drawn stays drawn."""
        ...
