"""The code of a lattice against the same written bit by bit."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.sampling.draft_q import Lattice, MalformedQError
from draftproof.wire.lattice_code import pack, unpack
from tests.unit.wire.coder import bytes_of

V = 3000


@st.composite
def lattices(draw: st.DrawFn) -> Lattice:
    bits = draw(st.integers(1, 24))
    ids = sorted(draw(st.sets(st.integers(0, V - 1), min_size=1, max_size=min(40, 2**bits))))
    cuts = sorted(draw(st.sets(st.integers(1, 2**bits - 1), min_size=len(ids) - 1, max_size=len(ids) - 1)))
    return Lattice(bits, np.array(ids), np.diff([0, *cuts, 2**bits]))


@given(st.lists(lattices(), max_size=5))
def test_each_row_of_a_batch_is_what_it_is_bit_by_bit(qs: list[Lattice]) -> None:
    packed = pack(qs)
    assert len(packed) == len(qs)
    for q, (gap_bits, code) in zip(qs, packed, strict=True):
        gaps = (np.diff(q.ids, prepend=-1) - 1).tolist()
        assert code == bytes_of(gaps, q.counts.tolist(), gap_bits)
        back = unpack(code, len(q.ids), gap_bits, q.bits, V)
        assert (back.bits, back.ids.tolist(), back.counts.tolist()) == (q.bits, q.ids.tolist(), q.counts.tolist())


@given(lattices(), st.integers(0, 31))
def test_any_gap_bits_can_be_read(q: Lattice, gap_bits: int) -> None:
    code = bytes_of((np.diff(q.ids, prepend=-1) - 1).tolist(), q.counts.tolist(), gap_bits)
    back = unpack(code, len(q.ids), gap_bits, q.bits, V)
    assert (back.ids.tolist(), back.counts.tolist()) == (q.ids.tolist(), q.counts.tolist())


def test_the_chosen_gap_bits_are_close_to_the_best() -> None:
    rng = np.random.default_rng(6)
    for entries in (1, 5, 30, 200, 2000, V):
        ids = np.sort(rng.choice(V, entries, replace=False))
        ((_, code),) = pack([Lattice(24, ids, np.ones(entries, np.int64))])
        gaps = (np.diff(ids, prepend=-1) - 1).tolist()
        best = min(len(bytes_of(gaps, [1] * entries, b)) for b in range(14))
        assert len(code) <= 1.03 * best + 1


@pytest.mark.parametrize("vocab_size", [49_152, 151_936])
def test_ids_take_hardly_more_bits_than_there_are_ways_to_choose_them(vocab_size: int) -> None:
    """log2 of V over M, the least for ids that may be anywhere; a count of 1 adds one bit."""
    rng = np.random.default_rng(7)
    for entries in (32, 128, 512):
        ids = np.sort(rng.choice(vocab_size, entries, replace=False))
        ((_, code),) = pack([Lattice(24, ids, np.ones(entries, np.int64))])
        n, m = vocab_size + 1, entries + 1
        ways = (math.lgamma(n) - math.lgamma(m) - math.lgamma(n - m + 1)) / math.log(2)
        assert 8 * len(code) - 8 < 1.05 * ways + entries


@pytest.mark.parametrize("tail", [b"\x00", b"\x80"])
def test_bytes_after_the_end_are_refused(tail: bytes) -> None:
    code = bytes_of([1, 2], [3, 5], 1)
    assert unpack(code, 2, 1, 3, V).counts.tolist() == [3, 5]
    with pytest.raises(MalformedQError):
        unpack(code + tail, 2, 1, 3, V)


def test_a_one_in_the_padding_is_refused() -> None:
    code = bytes_of([1, 2], [3, 5], 1)
    with pytest.raises(MalformedQError, match="bits"):
        unpack(code[:-1] + bytes([code[-1] | 1]), 2, 1, 3, V)
