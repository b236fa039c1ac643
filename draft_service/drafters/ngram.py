"""Prompt lookup: proposes what followed the last tokens when they stood in the text before.

Saxena 2023, "Prompt Lookup Decoding". The choice looks at committed tokens alone, so q is one-hot and the law exact.
"""

from __future__ import annotations

from collections.abc import Sequence

from draft_service.drafters.interface import Guess, OpenBlock
from draft_service.drafters.suffixes import SuffixIndex
from draftproof.engine.interface import Update
from draftproof.errors import ConfigError
from draftproof.sampling.draft_q import OneHot
from draftproof.serving.drafting import DraftSequence, Proposal


class NgramDrafter:
    """Looks for the longest suffix of at most `longest` tokens that occurs earlier; the latest occurrence wins.

    Args:
        longest: most tokens to match, >= shortest.
        shortest: fewest tokens to match, >= 1.

    Raises:
        ConfigError: the lengths don't fit.
    """

    name = "ngram"
    weights_sha256 = b""
    width = 1024
    forward_ns = 0

    def __init__(self, longest: int = 4, shortest: int = 2) -> None:
        if not 1 <= shortest <= longest:
            raise ConfigError("ngram", f"needs 1 <= shortest <= longest, got {shortest} and {longest}")
        self._lengths = (shortest, longest)
        self._indexes: dict[DraftSequence, SuffixIndex] = {}

    def step(self, blocks: Sequence[OpenBlock]) -> None:
        """Fills each block with what followed, or ends it empty."""
        for block in blocks:
            index = self._indexes.setdefault(block.sequence, SuffixIndex(*self._lengths))
            index.extend(block.sequence.tokens(len(index.tokens), block.sequence.position))
            block.proposals.extend(Proposal(token, OneHot(token)) for token in index.continued(block.gamma))
            block.ended = True

    def guesses(self, sequence: DraftSequence, position: int, proposals: Sequence[Proposal]) -> list[Guess]:
        """None: a look into an index is quicker than a guess."""
        return []

    def release(self, sequence: DraftSequence) -> None:
        """Drops the sequence's index."""
        self._indexes.pop(sequence, None)

    def install(self, update: Update) -> None:
        """No weights: nothing loads such an update."""
        raise NotImplementedError
