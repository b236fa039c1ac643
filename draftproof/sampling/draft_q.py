"""What q can be in memory, and how a token is drawn from each form.

q is exactly the distribution the token is drawn from, so every rounding happens here, before the draw. A lattice
(integer counts that sum to a power of two) is exact by construction; the float forms are renormalised in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftproof.sampling.rng import unit

MAX_BITS = 24
SUM_TOLERANCE = 1e-4


class MalformedQError(ValueError):
    """A q that is no distribution over the vocabulary."""


@dataclass(frozen=True, slots=True, eq=False)
class Lattice:
    """Counts in units of 2**-bits; the only form whose draw is recomputed by the target.

    Attributes:
        bits: 1..24.
        ids: int64 [M], strictly ascending.
        counts: int64 [M], each >= 1, summing to 2**bits.
    """

    bits: int
    ids: NDArray[np.int64]
    counts: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Sparse:
    """Listed masses; every other token has mass 0.

    Attributes:
        ids: int64 [M], strictly ascending.
        masses: float32 [M] as on the wire, >= 0, summing to 1 within 1e-4.
    """

    ids: NDArray[np.int64]
    masses: NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """Masses of all V tokens.

    Attributes:
        masses: float32 [V] as on the wire, >= 0, summing to 1 within 1e-4.
    """

    masses: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class OneHot:
    """All mass on one token, chosen without randomness."""

    token_id: int


DraftQ = Lattice | Sparse | Dense | OneHot


def validate(q: DraftQ, vocab_size: int) -> None:
    """Checks that q is a distribution over [0, vocab_size); never looks at the token drawn from it.

    Raises:
        MalformedQError: says what is wrong.
    """
    match q:
        case Lattice(bits, ids, counts):
            _check_bits(bits)
            _check_ids(ids, vocab_size)
            _check_counts(counts, len(ids), bits)
        case Sparse(ids, masses):
            _check_ids(ids, vocab_size)
            _check_masses(masses, len(ids))
        case Dense(masses):
            _check_masses(masses, vocab_size)
        case OneHot(token_id):
            if not 0 <= token_id < vocab_size:
                raise MalformedQError(f"token id {token_id} is not in [0, {vocab_size})")


def support(q: DraftQ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The ids that can have mass (all V of a dense q), ascending, and their masses, normalised in float64.

    Returns:
        int64 [M], float64 [M].
    """
    match q:
        case Lattice(bits, ids, counts):
            return ids, counts.astype(np.float64) * 2.0**-bits
        case Sparse(ids, masses):
            return ids, _normalised(masses)
        case Dense(masses):
            return np.arange(len(masses), dtype=np.int64), _normalised(masses)
        case OneHot(token_id):
            return np.array([token_id], dtype=np.int64), np.ones(1)


def mass(q: DraftQ, token_id: int) -> float:
    """Normalised mass of one token, the same number as in `support`; 0 for every id that isn't listed."""
    match q:
        case Lattice(bits, ids, counts):
            index = _find(ids, token_id)
            return 0.0 if index is None else float(counts[index]) * 2.0**-bits
        case Sparse(ids, masses):
            index = _find(ids, token_id)
            return 0.0 if index is None else float(np.float64(masses[index]) / _total(masses))
        case Dense(masses):
            if not 0 <= token_id < len(masses):
                return 0.0
            return float(np.float64(masses[token_id]) / _total(masses))
        case OneHot(only):
            return float(token_id == only)


def draw(q: DraftQ, word: int) -> int:
    """The token that a random 64-bit word selects from a valid q.

    A lattice takes the word's upper `bits` bits as an integer and returns the first id whose cumulative count exceeds
    it: every count is hit by exactly that many integers. The float forms use the word as `rng.unit` does.
    """
    match q:
        case Lattice(bits, ids, counts):
            return int(ids[np.searchsorted(np.cumsum(counts), word >> (64 - bits), side="right")])
        case Sparse(ids, masses):
            return int(ids[_inverse_cdf(masses, word)])
        case Dense(masses):
            return _inverse_cdf(masses, word)
        case OneHot(token_id):
            return token_id


def quantise(q_probs: Tensor, entries: int | Sequence[int], bits: int) -> list[Lattice]:
    """Rounds each row to counts that sum to 2**bits.

    Keeps the tokens that have half a count or more, q >= 2**-(bits + 1), and of these the `entries` largest (ties to
    the lower id); where no token has as much, the largest of all. What is kept is scaled to 2**bits and rounded down,
    and what is left goes to the largest remainders (ties to the lower id). Tokens whose count is 0 are dropped. A row's
    result doesn't depend on the rows beside it.

    Args:
        q_probs: float [N, V], >= 0, each row summing to about one.
        entries: most ids to keep, >= 1; one number, or one for each row.
        bits: 1..24.

    Raises:
        ValueError: entries or bits out of range, or a row that is no distribution (NaN, infinite, all zero).
    """
    rows, vocab_size = q_probs.shape
    limits = np.broadcast_to(np.asarray(entries, dtype=np.int64), (rows,))
    if rows and limits.min() < 1:
        raise ValueError(f"entries must be >= 1, got {entries}")
    if not 1 <= bits <= MAX_BITS:
        raise ValueError(f"bits must be in [1, {MAX_BITS}], got {bits}")
    if rows == 0:
        return []
    at, masses = _at_least(q_probs, 2.0 ** -(bits + 1))
    owners = at // vocab_size
    sizes = np.bincount(owners, minlength=rows)
    crowded = np.flatnonzero((sizes > limits) | (sizes == 0))
    if len(crowded):
        ends = np.cumsum(sizes)[:-1]
        places, values = np.split(at, ends), np.split(masses, ends)
        for row in crowded.tolist():
            if sizes[row] == 0:
                values[row] = q_probs[row].cpu().numpy()
                places[row] = np.arange(row * vocab_size, (row + 1) * vocab_size)
            chosen = _largest(values[row], int(limits[row]))
            places[row], values[row] = places[row][chosen], values[row][chosen]
        at, masses = np.concatenate(places), np.concatenate(values)
        sizes = np.array([len(place) for place in places])
        owners = np.repeat(np.arange(rows), sizes)
    counts = _largest_remainder(masses.astype(np.float64), owners, sizes, bits)
    kept = counts > 0
    ends = np.cumsum(np.bincount(owners[kept], minlength=rows))[:-1]
    ids = np.split((at - owners * vocab_size)[kept], ends)
    return [Lattice(bits, *row) for row in zip(ids, np.split(counts[kept], ends), strict=True)]


def sparsify(q_probs: Tensor) -> list[Sparse]:
    """The non-zero masses of each row [N, V], as float32."""
    rows = q_probs.to(torch.float32)
    return [Sparse((ids := row.nonzero()[:, 0]).cpu().numpy(), row[ids].cpu().numpy()) for row in rows]


def dense(q_probs: Tensor) -> list[Dense]:
    """All masses of each row [N, V], as float32; views of q_probs where it is float32 on the CPU."""
    return [Dense(row) for row in q_probs.to(torch.float32).cpu().numpy()]


def _inverse_cdf(masses: NDArray[np.float32], word: int) -> int:
    """As `sampling.inverse_cdf`, for one row without torch: numpy's sequential cumsum never falls, so that an index
    where it exceeds the threshold first is one where it rises, which a zero mass can't cause."""
    cumulative = np.cumsum(masses, dtype=np.float64)
    total = cumulative[-1]
    u = unit(np.array([word], dtype=np.uint64))[0]
    threshold = min(u * total, np.nextafter(total, 0.0))
    return int(np.searchsorted(cumulative, threshold, side="right"))


def _total(masses: NDArray[np.float32]) -> np.float64:
    return np.float64(np.sum(masses, dtype=np.float64))


def _normalised(masses: NDArray[np.float32]) -> NDArray[np.float64]:
    normalised: NDArray[np.float64] = masses / _total(masses)
    return normalised


def _find(ids: NDArray[np.int64], token_id: int) -> int | None:
    index = int(np.searchsorted(ids, token_id))
    return index if index < len(ids) and ids[index] == token_id else None


def _check_bits(bits: int) -> None:
    if not 1 <= bits <= MAX_BITS:
        raise MalformedQError(f"bits must be in [1, {MAX_BITS}], got {bits}")


def _check_ids(ids: NDArray[np.int64], vocab_size: int) -> None:
    if ids.ndim != 1 or len(ids) == 0:
        raise MalformedQError("no ids")
    if np.any(ids[1:] <= ids[:-1]):
        raise MalformedQError("ids are not strictly ascending")
    if ids[0] < 0 or ids[-1] >= vocab_size:
        raise MalformedQError(f"ids are not in [0, {vocab_size})")


def _check_counts(counts: NDArray[np.int64], length: int, bits: int) -> None:
    if counts.shape != (length,):
        raise MalformedQError(f"{length} ids but counts of shape {counts.shape}")
    # Bounds first: the sum of larger counts could wrap around.
    if counts.min() < 1 or counts.max() > 2**bits:
        raise MalformedQError(f"counts are not in [1, 2**{bits}]")
    if counts.sum() != 2**bits:
        raise MalformedQError(f"counts sum to {counts.sum()}, not 2**{bits}")


def _check_masses(masses: NDArray[np.float32], length: int) -> None:
    if masses.shape != (length,):
        raise MalformedQError(f"masses have shape {masses.shape}, expected ({length},)")
    if not np.isfinite(masses).all():
        raise MalformedQError("masses are not finite")
    if np.any(masses < 0):
        raise MalformedQError("a mass is negative")
    total = _total(masses)
    if abs(total - 1.0) > SUM_TOLERANCE:
        raise MalformedQError(f"masses sum to {total:.6g}, not 1 within {SUM_TOLERANCE:g}")


def _at_least(q_probs: Tensor, least: float) -> tuple[NDArray[np.int64], NDArray[np.floating[Any]]]:
    """Where the elements of [N, V] are that large or NaN, counted through all rows, and what they are."""
    if q_probs.device.type == "cpu":
        # some seven times as fast as torch here
        flat = q_probs.numpy().ravel()
        at = np.flatnonzero(~(flat < least))
        return at, flat[at]
    found = (q_probs < least).logical_not_().flatten().nonzero()[:, 0]
    return found.cpu().numpy(), q_probs.flatten()[found].cpu().numpy()


def _largest(values: NDArray[np.floating[Any]], count: int) -> NDArray[np.int64]:
    """Where the largest values of [M] are, ties to the lower index, ascending: int64 [min(count, M)]."""
    if count >= len(values):
        return np.arange(len(values))
    # whatever exceeds the smallest that is kept stays; of its equals, the first
    smallest = np.partition(values, -count)[-count]
    above = np.flatnonzero(values > smallest)
    equal = np.flatnonzero(values == smallest)
    return np.sort(np.concatenate([above, equal[: count - len(above)]]))


def _largest_remainder(
    masses: NDArray[np.float64], owners: NDArray[np.int64], sizes: NDArray[np.int64], bits: int
) -> NDArray[np.int64]:
    """Counts of each row, summing to 2**bits exactly.

    Args:
        masses: float64 [T], row after row.
        owners: int64 [T], the row of each.
        sizes: int64 [N], how many belong to each row.
        bits: k.

    Returns:
        int64 [T].
    """
    # bincount adds one after another, so that a row's total is the same whatever the batch
    totals = np.bincount(owners, weights=masses, minlength=len(sizes))
    if not np.all(np.isfinite(totals) & (totals > 0)) or masses.min() < 0:
        raise ValueError("a row of q is not a distribution")
    scaled = masses / totals[owners] * 2.0**bits
    counts = np.floor(scaled)
    # Rounding in float64 is far below one unit, so that the floors never sum to more than 2**bits, and what is left is
    # at most the number of tokens with a remainder: no token of mass zero gets a unit.
    left = 2**bits - np.bincount(owners, weights=counts, minlength=len(sizes))
    order = np.lexsort((counts - scaled, owners))
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    result: NDArray[np.int64] = (counts + (rank < left[owners])).astype(np.int64)
    return result
