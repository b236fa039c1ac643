"""The exponential race: a token drawn as the winner of argmax p(x) / E(x), with noise that two sides can share.

E(x) are independent exponential numbers, so x wins with probability p(x) / sum p; taking logarithms this is the
Gumbel-max trick, argmax of log p + G. The noise is a function of (request key, position, token) and of nothing else:
whoever draws at a position with the same key uses the same numbers, and distributions that are close mostly have the
same winner (Daliri et al. 2024, arXiv 2408.07978).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftproof.sampling.rng import Purpose, key_words, words

_GROUP = 4
# Noise of single tokens costs a group of four each; beyond this share of the vocabulary all of it is cheaper.
_FEW = 16
# So many groups at a time stay in the processor's cache.
_CHUNK = 2**14


def winners(p: Tensor, keys: Sequence[bytes], positions: Sequence[int]) -> Tensor:
    """The winner of each row.

    A token of p(x) = 0 never wins; ties, which have probability 0, go to the lower id.

    Args:
        p: float[N, V], finite, >= 0, each row with some mass; need not sum to one.
        keys: N request keys, 32 bytes.
        positions: N positions in the text, counted from the start of the original prompt.

    Returns:
        int64[N], on p's device.
    """
    found: list[int] = []
    open_: list[_Race] = []
    size = 0
    for row, key, position in zip(p.detach().cpu().numpy(), keys, positions, strict=True):
        race = _Race.of(row, key, position)
        if open_ and size + len(race.groups) > _CHUNK:
            found += _run(open_)
            open_, size = [], 0
        open_.append(race)
        size += len(race.groups)
    if open_:
        found += _run(open_)
    return torch.tensor(found, dtype=torch.int64, device=p.device)


def exponentials(
    keys: NDArray[np.uint64], positions: NDArray[np.int64], groups: NDArray[np.int64]
) -> NDArray[np.float64]:
    """The noise of groups of four tokens: uint64[M, 4], int64[M], int64[M] -> float64[M, 4], each > 0 and finite."""
    counters = np.zeros((len(groups), 4), dtype=np.uint64)
    counters[:, 0] = positions
    counters[:, 2] = groups
    counters[:, 3] = int(Purpose.RACE)
    # The middle of a cell of the 53-bit grid: neither 0, whose logarithm is infinite, nor 1, whose is 0.
    noise: NDArray[np.float64] = -np.log(((words(keys, counters) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53)
    return noise


@dataclass(frozen=True, slots=True)
class _Race:
    """One row: the tokens that take part (None: all), their masses, and the groups whose noise they need."""

    key: NDArray[np.uint64]
    position: int
    ids: NDArray[np.int64] | None
    masses: NDArray[np.floating[Any]]
    groups: NDArray[np.int64]
    where: NDArray[np.int64]

    @classmethod
    def of(cls, p: NDArray[np.floating[Any]], key: bytes, position: int) -> _Race:
        ids = np.flatnonzero(p)
        if len(ids) * _FEW > len(p):
            groups = np.arange(-(-len(p) // _GROUP))
            return cls(key_words(key), position, None, p, groups, groups)
        groups, where = np.unique(ids // _GROUP, return_inverse=True)
        return cls(key_words(key), position, ids, p[ids], groups, where)

    def winner(self, noise: NDArray[np.float64]) -> int:
        if self.ids is None:
            return int(np.argmax(self.masses / noise.reshape(-1)[: len(self.masses)]))
        return int(self.ids[np.argmax(self.masses / noise[self.where, self.ids % _GROUP])])


def _run(races: Sequence[_Race]) -> list[int]:
    sizes = [len(race.groups) for race in races]
    noise = exponentials(
        np.repeat(np.stack([race.key for race in races]), sizes, axis=0),
        np.repeat([race.position for race in races], sizes),
        np.concatenate([race.groups for race in races]),
    )
    parts = np.split(noise, np.cumsum(sizes)[:-1])
    return [race.winner(part) for race, part in zip(races, parts, strict=True)]
