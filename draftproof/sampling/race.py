"""The exponential race: a token drawn as the winner of argmax p(x) / E(x), with noise that two sides can share.

E(x) are independent exponential numbers, so x wins with probability p(x) / sum p; taking logarithms this is the
Gumbel-max trick, argmax of log p + G. The noise is a function of (request key, position, token) and of nothing else:
whoever draws at a position with the same key uses the same numbers, and distributions that are close mostly have the
same winner (Daliri et al. 2024, arXiv 2408.07978).

A race over a large vocabulary would cost one number a token. So tokens stand in cells of 64, and a cell's least number
is drawn before the others: the least of 64 independent exponential numbers of mean 1 is exponential of mean 1/64, it
belongs to each of the 64 with equal chance, and since the exponential distribution has no memory, the others exceed it
by independent exponential numbers of mean 1 again. What comes out are 64 independent exponential numbers, and no token
of a cell can score more than the cell's largest mass over its least number: nearly all cells are out of the race on
that alone, and their tokens' numbers are never computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftproof.sampling.rng import Purpose, key_words, words

CELL = 64
_GROUP = 4
# So many numbers at a time stay in the processor's cache.
_CHUNK = 2**13

_Keys = NDArray[np.uint64]
_Ints = NDArray[np.int64]
_Floats = NDArray[np.float64]


def winners(p: Tensor, keys: Sequence[bytes], positions: Sequence[int], rows: Sequence[int] | None = None) -> Tensor:
    """The winners of some rows.

    A token of p(x) = 0 never wins; ties, which have probability 0, go to the lower id.

    Args:
        p: float[N, V], finite, >= 0, each row in question with some mass; need not sum to one.
        keys: R request keys, 32 bytes.
        positions: R positions in the text, counted from the start of the original prompt.
        rows: R rows of p; None: all of them.

    Returns:
        int64[R], on p's device.
    """
    if p.device.type == "cpu":
        masses, at = p.detach().numpy(), np.arange(len(p)) if rows is None else np.array(rows, dtype=np.int64)
    else:
        masses = (p if rows is None else p[list(rows)]).detach().cpu().numpy()
        at = np.arange(len(masses))
    key, position = np.stack([key_words(k) for k in keys]), np.array(positions, dtype=np.int64)
    largest = np.stack([_largest(masses[row]) for row in at])
    racing, cells = np.nonzero(largest)
    least, _ = minima(key[racing], position[racing], cells)
    bounds = np.zeros(largest.shape)
    bounds[racing, cells] = largest[racing, cells] / least

    # The most promising cell of each row, then whatever its best leaves in the race.
    every, first = np.arange(len(at)), bounds.argmax(axis=1)
    scores, ids = _best(masses, at, key, position, first)
    bounds[every, first] = 0.0
    racing, cells = np.nonzero((bounds > 0) & (bounds >= scores[:, None]))
    found = _best(masses, at[racing], key[racing], position[racing], cells)
    for row, score, token in zip(racing.tolist(), *(column.tolist() for column in found), strict=True):
        if score > scores[row] or (score == scores[row] and token < ids[row]):
            scores[row], ids[row] = score, token
    return torch.from_numpy(ids).to(p.device)


def minima(keys: _Keys, positions: _Ints, cells: _Ints) -> tuple[_Floats, _Ints]:
    """The least number of each cell, and which of its tokens it belongs to.

    Args:
        keys: uint64[M, 4].
        positions, cells: int64[M].

    Returns:
        float64[M], > 0 and finite, and int64[M] in [0, 64).
    """
    drawn = _words(keys, positions, 0, cells)
    return -np.log(_open_unit(drawn[:, 0])) / CELL, (drawn[:, 1] >> np.uint64(58)).astype(np.int64)


def exponentials(keys: _Keys, positions: _Ints, cells: _Ints) -> _Floats:
    """The noise of all tokens of cells: as for `minima` -> float64[M, 64], each > 0 and finite."""
    least, owner = minima(keys, positions, cells)
    per_cell = CELL // _GROUP
    groups = (cells[:, None] * per_cell + np.arange(per_cell)).ravel()
    drawn = _words(np.repeat(keys, per_cell, axis=0), np.repeat(positions, per_cell), 1, groups)
    noise: _Floats = least[:, None] - np.log(_open_unit(drawn)).reshape(-1, CELL)
    noise[np.arange(len(cells)), owner] = least
    return noise


def _largest(row: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    """The largest mass of each cell: [V] -> [ceil(V / 64)]."""
    whole = len(row) // CELL * CELL
    found = row[:whole].reshape(-1, CELL).max(axis=1)
    return found if whole == len(row) else np.append(found, row[whole:].max())


def _best(
    masses: NDArray[np.floating[Any]], rows: _Ints, keys: _Keys, positions: _Ints, cells: _Ints
) -> tuple[_Floats, _Ints]:
    """The best score in each of M cells and the token that has it, the lowest of equals: float64[M] and int64[M]."""
    tokens = cells[:, None] * CELL + np.arange(CELL)
    inside = tokens < masses.shape[1]
    scores = masses[rows[:, None], np.where(inside, tokens, 0)] / exponentials(keys, positions, cells)
    scores[~inside] = -1.0
    best = scores.argmax(axis=1)
    return scores[np.arange(len(cells)), best], tokens[np.arange(len(cells)), best]


def _words(keys: _Keys, positions: _Ints, kind: int, places: _Ints) -> NDArray[np.uint64]:
    """uint64[M, 4] of the race at each place; `kind` is 0 for cells and 1 for groups of four tokens."""
    found = np.empty((len(places), 4), dtype=np.uint64)
    for start in range(0, len(places), _CHUNK):
        part = slice(start, start + _CHUNK)
        counters = np.empty((len(places[part]), 4), dtype=np.uint64)
        counters[:, 0], counters[:, 1], counters[:, 2], counters[:, 3] = (
            positions[part],
            kind,
            places[part],
            Purpose.RACE,
        )
        found[part] = words(keys[part], counters)
    return found


def _open_unit(drawn: NDArray[np.uint64]) -> _Floats:
    """Words to floats in (0, 1), the middles of a 53-bit grid's cells: never 0, whose logarithm is infinite, nor 1."""
    found: _Floats = ((drawn >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return found
