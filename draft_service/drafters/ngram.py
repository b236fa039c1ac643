"""Prompt lookup: proposes what followed the last tokens when they stood in the text before.

Saxena 2023, "Prompt Lookup Decoding". The choice looks at committed tokens alone, so q is one-hot and the law exact.
"""

from __future__ import annotations

from collections.abc import Sequence

from draft_service.drafters.interface import Guess, OpenBlock
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
        self._lengths = range(longest, shortest - 1, -1)
        self._indexes: dict[DraftSequence, _SuffixIndex] = {}

    def step(self, blocks: Sequence[OpenBlock]) -> None:
        """Fills each block with what followed, or ends it empty."""
        for block in blocks:
            index = self._indexes.setdefault(block.sequence, _SuffixIndex(self._lengths))
            following = index.continuation(block.sequence, block.gamma)
            block.proposals.extend(Proposal(token, OneHot(token)) for token in following)
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


class _SuffixIndex:
    """Where each n-gram of a growing text last ended; extended by what is new, so a round costs O(new tokens)."""

    def __init__(self, lengths: range) -> None:
        self._lengths = lengths
        self._tokens: list[int] = []
        # per length: n-gram -> the two latest positions after it, since the latest may be the suffix itself
        self._ends: dict[int, dict[tuple[int, ...], tuple[int, int]]] = {n: {} for n in lengths}

    def continuation(self, sequence: DraftSequence, gamma: int) -> list[int]:
        """Up to `gamma` tokens that followed the earlier occurrence of the longest known suffix."""
        self._extend(sequence)
        end = len(self._tokens)
        for n in self._lengths:
            latest, before = self._ends[n].get(tuple(self._tokens[-n:]), (0, 0)) if end >= n else (0, 0)
            start = before if latest == end else latest
            if start:
                return self._read(start, gamma)
        return []

    def _read(self, start: int, gamma: int) -> list[int]:
        """Tokens from `start`; where the text ends, the copy goes on with what it has copied (a loop goes on)."""
        copied: list[int] = []
        for i in range(gamma):
            position = start + i
            end = len(self._tokens)
            copied.append(self._tokens[position] if position < end else copied[position - end])
        return copied

    def _extend(self, sequence: DraftSequence) -> None:
        known = len(self._tokens)
        prompt = len(sequence.prompt_ids)
        new = [*sequence.prompt_ids[known:], *sequence.output_ids[max(0, known - prompt) :]]
        for token in new:
            self._tokens.append(token)
            end = len(self._tokens)
            for n, ends in self._ends.items():
                if end >= n:
                    gram = tuple(self._tokens[-n:])
                    ends[gram] = (end, ends.get(gram, (0, 0))[0])
