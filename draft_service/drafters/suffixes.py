"""Where the last tokens of a text stood before."""

from __future__ import annotations

from collections.abc import Sequence


class SuffixIndex:
    """Where each n-gram of a growing text last ended; extended by what is new, so a round costs O(new tokens).

    Args:
        shortest, longest: tokens of the n-grams, 1 <= shortest <= longest.
    """

    def __init__(self, shortest: int, longest: int) -> None:
        self.tokens: list[int] = []
        self._lengths = range(longest, shortest - 1, -1)
        # per length: n-gram -> the two latest positions after it, since the latest may be the suffix itself
        self._ends: dict[int, dict[tuple[int, ...], tuple[int, int]]] = {n: {} for n in self._lengths}

    def extend(self, tokens: Sequence[int]) -> None:
        """Adds tokens that will stay."""
        for token in tokens:
            self.tokens.append(token)
            end = len(self.tokens)
            for n, ends in self._ends.items():
                if end >= n:
                    gram = tuple(self.tokens[-n:])
                    ends[gram] = (end, ends.get(gram, (0, 0))[0])

    def find(self, tail: Sequence[int] = ()) -> tuple[int, int]:
        """The longest suffix of the text with `tail` behind it that stands in it before; (0, 0) if there is none.

        Depends on the two together alone, not on where the one ends and the other begins.

        Returns:
            The suffix's length, and the position after its latest earlier occurrence.
        """
        known = len(self.tokens)
        end = known + len(tail)
        first = max(0, known - self._lengths[0])
        recent = [*self.tokens[first:], *tail]
        for n in self._lengths:
            if n >= end:
                continue
            gram = recent[-n:]
            for after in range(end - 1, max(known, n - 1), -1):
                if recent[after - n - first : after - first] == gram:
                    return n, after
            latest, before = self._ends[n].get(tuple(gram), (0, 0))
            after = before if latest == end else latest
            if after:
                return n, after
        return 0, 0

    def continued(self, most: int) -> list[int]:
        """Up to `most` tokens that followed the earlier occurrence of the longest known suffix.

        Where the text ends, the copy goes on with what it has copied (a loop goes on).
        """
        length, start = self.find()
        copied: list[int] = []
        for position in range(start, start + most if length else start):
            end = len(self.tokens)
            copied.append(self.tokens[position] if position < end else copied[position - end])
        return copied
