"""Draws without replacement from integer counts."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from draftproof.sampling.draft_q import Lattice, MalformedQError, draw
from draftproof.sampling.rng import Draw, Purpose, fresh_key, random_quads
from draftproof.sampling.siblings import _below, draw_sibling, remaining

LATTICE = Lattice(4, np.array([2, 5, 9]), np.array([7, 6, 3]))


def test_the_first_child_is_drawn_as_any_proposal_is() -> None:
    draws = [Draw(fresh_key(), 3, 0, Purpose.DRAFT, node) for node in range(1, 200)]
    for words in random_quads(draws).tolist():
        assert draw_sibling(remaining(LATTICE, []), words) == draw(LATTICE, words[0])


def test_what_is_left_is_what_was_there_without_the_siblings() -> None:
    left = remaining(LATTICE, [5, 77])
    assert (left.ids.tolist(), left.counts.tolist(), left.total) == ([2, 9], [7, 3], 10)
    assert left.masses.tolist() == [0.7, 0.3]
    with pytest.raises(MalformedQError, match="all of q"):
        remaining(LATTICE, [2, 5, 9])


@pytest.mark.parametrize("total", [1, 2, 3, 7, 10, 2**23 + 1, 2**24])
def test_every_integer_has_as_many_words(total: int) -> None:
    """Integer i takes words from ceil(i 2^64 / C) on, but for those whose low half is below 2^64 mod C."""
    skewed = 2**64 % total
    for i in sorted({0, total // 2, total - 1}):
        first, after = -(-i * 2**64 // total), -(-(i + 1) * 2**64 // total)
        short = sum((word * total) % 2**64 < skewed for word in (first, first + 1) if word < after)
        assert after - first - short == 2**64 // total
        assert _below(total, [after - 1, 0, 0, 0]) == i
        if first * total % 2**64 < skewed:
            # passed over: the next word decides
            assert _below(total, [first, 2**64 - 1, 0, 0]) == total - 1


def test_where_every_word_is_passed_over_the_last_one_counts() -> None:
    assert _below(3, [0, 0, 0, 0]) == 0


def test_frequencies_are_the_counts() -> None:
    left = remaining(LATTICE, [5])
    words = random_quads([Draw(bytes(32), 0, 0, Purpose.DRAFT, node) for node in range(20_000)]).tolist()
    share = sum(draw_sibling(left, quad) == 2 for quad in words) / len(words)
    assert abs(share - Fraction(7, 10)) < 4 * (0.21 / 20_000) ** 0.5
