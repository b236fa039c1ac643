"""Copying: where the text repeats at length, what came next before is proposed at once, without the model.

Saxena 2023, "Prompt Lookup Decoding". A long match is right as often as a draft model and costs nothing, and where one
begins is known before a block: acceptance and cost are learnt for it apart. Committed tokens alone decide, so q is
one-hot, the law exact, and a seeded request's text the same.
"""

from __future__ import annotations

from draft_service.drafters.suffixes import SuffixIndex
from draftproof.sampling.draft_q import OneHot
from draftproof.sampling.params import Rule
from draftproof.serving.drafting import DraftSequence, Outlook, Proposal


class Copier:
    """Finds the longest suffix of a sequence that stands in it before; the latest occurrence wins.

    Args:
        shortest: fewest tokens of a match.
        longest: most tokens of a match.
        alone: whether nobody else proposes where there is no match.
    """

    def __init__(self, shortest: int = 4, longest: int = 8, alone: bool = False) -> None:
        self._lengths = (shortest, longest)
        self._otherwise = Outlook.NOTHING if alone else Outlook.USUAL
        self._indexes: dict[DraftSequence, SuffixIndex] = {}

    def outlook(self, sequence: DraftSequence) -> Outlook:
        """Whether a block now would be a copy."""
        return Outlook.COPY if self.propose(sequence, 1) else self._otherwise

    def propose(self, sequence: DraftSequence, gamma: int) -> list[Proposal]:
        """Up to `gamma` tokens that followed; none where there is no match. Trees are others' work."""
        if sequence.params.rule is Rule.TREE:
            return []
        index = self._indexes.setdefault(sequence, SuffixIndex(*self._lengths))
        index.extend(sequence.tokens(len(index.tokens), sequence.position))
        return [Proposal(token, OneHot(token)) for token in index.continued(gamma)]

    def release(self, sequence: DraftSequence) -> None:
        """Drops the sequence's index."""
        self._indexes.pop(sequence, None)
