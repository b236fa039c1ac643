"""What a generation asks of a drafter, and the drafter that proposes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from draftproof.sampling.draft_q import DraftQ
from draftproof.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True)
class Proposal:
    """A drawn token and the very distribution it was drawn from.

    Attributes:
        q: None under the coupled rule, which needs none, and where the draw was from what earlier siblings left.
        runner_up: the token that comes next in rank, where q is one-hot or absent and doesn't say; never sent.
        parent: the node of a tree that it hangs from: 0 is the end of the committed text, i the i-th proposal, counted
            from 1; None: the proposal before it.
    """

    token_id: int
    q: DraftQ | None
    runner_up: int | None = None
    parent: int | None = None


@dataclass(eq=False, slots=True)
class DraftSequence:
    """One request as a drafter sees it: the committed tokens and how to draw after them.

    Attributes:
        prompt_ids: original prompt.
        output_ids: committed tokens; the generation appends, drafters only read.
        params: sampling settings, the same on both sides.
        key: request key, 32 bytes.
        max_gamma: most proposals that the target takes in a block.
        max_context: tokens that it has room for, those of a block included.
    """

    prompt_ids: Sequence[int]
    params: SamplingParams
    key: bytes
    output_ids: list[int] = field(default_factory=list)
    max_gamma: int = 16
    max_context: int = 2**31

    @property
    def room(self) -> int:
        """Most proposals in the next block, on whatever branches of a tree."""
        return min(self.max_gamma, self.max_context - self.position)

    @property
    def position(self) -> int:
        """Where the next block begins, in tokens from the start of the original prompt."""
        return len(self.prompt_ids) + len(self.output_ids)

    def tokens(self, start: int, stop: int) -> list[int]:
        """Tokens [start, stop) of prompt and output."""
        prompt = len(self.prompt_ids)
        return [*self.prompt_ids[start:stop], *self.output_ids[max(0, start - prompt) : max(0, stop - prompt)]]


class Outlook(Enum):
    """What kind of block would come now, each with an acceptance and a cost of its own."""

    USUAL = "usual"
    COPY = "copy"
    """What the text itself suggests, at no cost."""
    NOTHING = "nothing"


class Drafting(Protocol):
    """Proposes blocks for many sequences."""

    name: str

    def outlook(self, sequence: DraftSequence) -> Outlook:
        """What kind of block `propose` would give. Committed tokens alone decide (L6)."""
        ...

    async def propose(self, sequence: DraftSequence, gamma: int) -> list[Proposal]:
        """Draws up to `gamma` proposals after the committed tokens; under the tree rule, a tree up to so deep.

        Fewer come back only by a rule that looks at nothing but committed tokens, drawn proposals and their q (L6).
        """
        ...

    def ahead(self, sequence: DraftSequence, proposals: Sequence[Proposal], gamma: int, left: int) -> None:
        """Allows to work on the next block while the verdict on `proposals` is out; `propose` then finds it done.

        Pure pre-computation: what `propose` gives is what it would have given without.

        Args:
            sequence: committed tokens as before the block that is out.
            proposals: that block, not empty.
            gamma: proposals of the next one.
            left: most tokens the sequence may still commit, those of the block that is out included.
        """
        ...

    def release(self, sequence: DraftSequence) -> None:
        """Forgets the sequence and frees what it holds."""
        ...


class NoDrafting:
    """Target-only: every round is a plain step of the target."""

    name = ""

    def outlook(self, sequence: DraftSequence) -> Outlook:
        """Nothing."""
        return Outlook.NOTHING

    async def propose(self, sequence: DraftSequence, gamma: int) -> list[Proposal]:
        """No proposals."""
        return []

    def ahead(self, sequence: DraftSequence, proposals: Sequence[Proposal], gamma: int, left: int) -> None:
        """Nothing to do."""

    def release(self, sequence: DraftSequence) -> None:
        """Nothing to free."""
