"""Drawing siblings without replacement from integer counts, so that the target can repeat every draw.

The first child of a node is drawn from its lattice as any proposal is. Each later one is drawn from the same counts
less those of its earlier siblings' tokens: C of them are left, no power of two any more. A uniform integer in [0, C)
comes from 64-bit words by multiplication: floor(w C / 2^64), where w is taken only if the product's low half is at
least 2^64 mod C (Lemire 2019, arXiv 1805.10941); then each integer is hit by the same number of words. The generator
gives four words a number. Four in a row are passed over with a probability below 2^-160; then the last one is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftproof.sampling.draft_q import Lattice, MalformedQError

_WORD = 2**64


@dataclass(frozen=True, slots=True, eq=False)
class Remaining:
    """Counts that are left of a lattice.

    Attributes:
        ids: int64[M], strictly ascending.
        counts: int64[M], each >= 1.
        total: C, their sum.
    """

    ids: NDArray[np.int64]
    counts: NDArray[np.int64]
    total: int

    @property
    def masses(self) -> NDArray[np.float64]:
        """The distribution they are, float64[M]."""
        return self.counts / self.total


def remaining(q: Lattice, drawn: Sequence[int]) -> Remaining:
    """What is left of q without the tokens drawn from it before; tokens it doesn't have take nothing.

    Raises:
        MalformedQError: nothing.
    """
    kept = ~np.isin(q.ids, np.asarray(drawn, dtype=np.int64))
    counts = q.counts[kept]
    total = int(counts.sum())
    if total == 0:
        raise MalformedQError("the earlier siblings take all of q")
    return Remaining(q.ids[kept], counts, total)


def draw_sibling(left: Remaining, words: Sequence[int]) -> int:
    """The token that the words of one random number select, with probability count / C each.

    Args:
        left: what to draw from.
        words: four integers in [0, 2^64), of `rng.random_quads`.
    """
    index = np.searchsorted(np.cumsum(left.counts), _below(left.total, words), side="right")
    return int(left.ids[index])


def _below(total: int, words: Sequence[int]) -> int:
    """A uniform integer in [0, total)."""
    skewed = _WORD % total
    product = 0
    for word in words:
        product = int(word) * total
        if product % _WORD >= skewed:
            break
    return product // _WORD
