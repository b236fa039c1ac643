"""The entries of a lattice as bits: Rice-coded gaps between ids and Elias-gamma counts, all of a batch at once.

The code of a row of M entries has four sections, most significant bit first, with zeros up to a whole byte:

1. for each gap g (ids skipped since the entry before) g >> b zeros and a one;
2. for each count c, with e = floor(log2 c), e zeros and a one;
3. the lower b bits of each gap;
4. the lower e bits of each count.

Keeping the parts of known width apart from the unary ones makes both directions a few array operations: the ones of
sections 1 and 2 are found all at once, and then every width is known.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from draftproof.sampling.draft_q import MAX_BITS, Lattice, MalformedQError

Ints = NDArray[np.int64]

MAX_GAP_BITS = 31


def pack(lattices: Sequence[Lattice]) -> list[tuple[int, bytes]]:
    """b and the code of each well-formed lattice."""
    if not lattices:
        return []
    sizes = np.array([len(q.ids) for q in lattices])
    ids = np.concatenate([q.ids for q in lattices])
    counts = np.concatenate([q.counts for q in lattices])
    ends = np.cumsum(sizes)
    starts = ends - sizes
    before = np.empty_like(ids)
    before[1:] = ids[:-1]
    before[starts] = -1
    gaps = ids - before - 1

    gap_bits = _gap_bits(ids[ends - 1] + 1 - sizes, sizes)
    widths = np.repeat(gap_bits, sizes)
    exponents = np.frexp(counts)[1].astype(np.int64) - 1
    gap_runs, exponent_runs = np.cumsum((gaps >> widths) + 1), np.cumsum(exponents + 1)
    mantissa_ends = exponent_runs - np.arange(1, len(ids) + 1)
    sections = np.stack(
        [_per_row(gap_runs, ends), _per_row(exponent_runs, ends), sizes * gap_bits, _per_row(mantissa_ends, ends)]
    )
    lengths = (sections.sum(axis=0) + 7) // 8
    row_ends = np.cumsum(lengths)
    # where each section of each row begins, less what the running sums over the whole batch have by then
    at = 8 * (row_ends - lengths) + np.cumsum(sections, axis=0) - sections
    bits = np.zeros(8 * int(row_ends[-1]), dtype=np.uint8)
    bits[gap_runs - 1 + np.repeat(at[0] - _begun(gap_runs, starts), sizes)] = 1
    bits[exponent_runs - 1 + np.repeat(at[1] - _begun(exponent_runs, starts), sizes)] = 1
    inside = np.arange(len(ids)) - np.repeat(starts, sizes)
    _write(bits, gaps, widths, np.repeat(at[2], sizes) + inside * widths)
    mantissas = mantissa_ends - exponents + np.repeat(at[3] - _begun(mantissa_ends, starts), sizes)
    _write(bits, counts, exponents, mantissas)
    data = np.packbits(bits).tobytes()
    return [(b, data[end - n : end]) for b, n, end in zip(gap_bits.tolist(), lengths.tolist(), row_ends, strict=True)]


def unpack(code: bytes, entries: int, gap_bits: int, bits: int, vocab_size: int) -> Lattice:
    """The lattice of a code. What it costs is bounded by V and by the length of the code, whatever the code holds.

    Args:
        code: as received.
        entries: M.
        gap_bits: b.
        bits: k of 2^k, what the counts must sum to; their sum and the ids' range are left to `draft_q.validate`.
        vocab_size: V.

    Raises:
        MalformedQError: it isn't the code of M entries over V tokens.
    """
    if not 1 <= bits <= MAX_BITS:
        raise MalformedQError(f"bits must be in [1, {MAX_BITS}], got {bits}")
    if not 1 <= entries <= min(vocab_size, 2**bits):
        raise MalformedQError(f"{entries} entries for a vocabulary of {vocab_size} and counts of 2**{bits}")
    if gap_bits > MAX_GAP_BITS:
        raise MalformedQError(f"gap_bits must be at most {MAX_GAP_BITS}, got {gap_bits}")
    longest = (vocab_size >> gap_bits) + entries * (2 + gap_bits + 2 * bits)
    if not entries * (2 + gap_bits) <= 8 * len(code) <= longest + 7:
        raise MalformedQError(f"{len(code)} bytes can't be {entries} entries")
    stream = np.unpackbits(np.frombuffer(code, dtype=np.uint8))
    ones = np.flatnonzero(stream)[: 2 * entries]
    if len(ones) < 2 * entries:
        raise MalformedQError("the code ends within its unary sections")
    runs = np.diff(ones, prepend=-1) - 1
    exponents = runs[entries:]
    if exponents.max() > bits:
        raise MalformedQError(f"a count is above 2**{bits}")
    at = int(ones[-1]) + 1
    gap_end = at + entries * gap_bits
    mantissa_ends = gap_end + np.cumsum(exponents)
    end = int(mantissa_ends[-1])
    if len(code) != (end + 7) // 8 or stream[end:].any():
        raise MalformedQError(f"the code of {entries} entries takes {end} bits, not {8 * len(code)}")
    low = stream[at:gap_end].reshape(entries, gap_bits) @ (1 << np.arange(gap_bits - 1, -1, -1))
    gaps = (runs[:entries] << gap_bits) + low
    mantissas = _read(stream[gap_end:end], exponents, mantissa_ends - gap_end)
    return Lattice(bits, np.cumsum(gaps + 1) - 1, (1 << exponents) + mantissas)


def _gap_bits(skipped: Ints, sizes: Ints) -> Ints:
    """The b that suits gaps of this mean, were they geometric: log2 of their median."""
    median = np.log(2) * skipped / sizes
    found: Ints = np.maximum(np.frexp(median)[1] - 1, 0).astype(np.int64) * (median > 0)
    return found


def _begun(running: Ints, starts: Ints) -> Ints:
    """A running sum over the batch, as it was before each row."""
    before: Ints = np.concatenate([[0], running])[starts]
    return before


def _per_row(running: Ints, ends: Ints) -> Ints:
    return np.diff(running[ends - 1], prepend=0)


def _write(bits: NDArray[np.uint8], values: Ints, widths: Ints, at: Ints) -> None:
    """Puts the lower `width` bits of each value at its place."""
    ends = np.cumsum(widths)
    inside = np.arange(ends[-1]) - np.repeat(ends - widths, widths)
    shifts = np.repeat(widths, widths) - 1 - inside
    bits[np.repeat(at, widths) + inside] = (np.repeat(values, widths) >> shifts) & 1


def _read(bits: NDArray[np.uint8], widths: Ints, ends: Ints) -> Ints:
    """Values of the given widths that lie one after another."""
    owner = np.repeat(np.arange(len(widths)), widths)
    shifts = np.repeat(ends, widths) - 1 - np.arange(len(bits))
    # sums below 2**24, exact in the float64 that bincount works in
    values: Ints = np.bincount(owner, weights=bits << shifts, minlength=len(widths)).astype(np.int64)
    return values
