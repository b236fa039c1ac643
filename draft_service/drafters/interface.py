"""The small interface behind which drafters differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from draftproof.serving.drafting import DraftSequence, Proposal


@dataclass(eq=False, slots=True)
class OpenBlock:
    """A block being drafted.

    Attributes:
        sequence: the request; its committed tokens don't change while the block is open.
        gamma: most proposals.
        proposals: drawn so far, in order.
        ended: no more will come, decided before the next draw (L6).
    """

    sequence: DraftSequence
    gamma: int
    proposals: list[Proposal] = field(default_factory=list)
    ended: bool = False

    @property
    def done(self) -> bool:
        """Whether the block can be sent."""
        return self.ended or len(self.proposals) >= self.gamma


class Drafter(Protocol):
    """Draws proposals for many blocks at once. One thread owns it."""

    name: str
    weights_sha256: bytes
    """Empty for a drafter without weights."""
    width: int
    """Most blocks a step takes."""
    forward_ns: int
    """Time spent in the model so far, nanoseconds."""

    def step(self, blocks: Sequence[OpenBlock]) -> None:
        """Advances each block: by one or more proposals, by a part of its prompt, or to its end."""
        ...

    def release(self, sequence: DraftSequence) -> None:
        """Forgets a sequence."""
        ...
