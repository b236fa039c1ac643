"""The exponential race: a token drawn as the winner of argmax p(x) / E(x), with noise that two sides can share.

E(x) are independent exponential numbers, so x wins with probability p(x) / sum p; taking logarithms this is the
Gumbel-max trick, argmax of log p + G. The noise is a function of (request key, position, token) and of nothing else:
whoever draws at a position with the same key uses the same numbers, and distributions that are close mostly have the
same winner (Daliri et al. 2024, arXiv 2408.07978).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftproof.sampling.rng import Purpose, key_words, words

_GROUP = 4
# Noise of single tokens costs a group of four each; beyond this share of the vocabulary all of it is cheaper.
_FEW = 16


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
    rows = p.detach().double().cpu().numpy()
    drawn = [_winner(row, key, at) for row, key, at in zip(rows, keys, positions, strict=True)]
    return torch.tensor(drawn, dtype=torch.int64, device=p.device)


def exponentials(key: bytes, position: int, groups: NDArray[np.int64]) -> NDArray[np.float64]:
    """The noise of some groups of four tokens: int64[M] -> float64[M, 4], each > 0 and finite."""
    counters = np.zeros((len(groups), 4), dtype=np.uint64)
    counters[:, 0] = position
    counters[:, 2] = groups
    counters[:, 3] = int(Purpose.RACE)
    drawn = words(np.broadcast_to(key_words(key), counters.shape), counters)
    # The middle of a cell of the 53-bit grid: neither 0, whose logarithm is infinite, nor 1, whose is 0.
    noise: NDArray[np.float64] = -np.log(((drawn >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53)
    return noise


def _winner(p: NDArray[np.float64], key: bytes, position: int) -> int:
    ids = np.flatnonzero(p)
    if len(ids) == 1:
        return int(ids[0])
    if len(ids) * _FEW > len(p):
        noise = exponentials(key, position, np.arange(-(-len(p) // _GROUP))).reshape(-1)[: len(p)]
        return int(np.argmax(p / noise))
    groups, where = np.unique(ids // _GROUP, return_inverse=True)
    noise = exponentials(key, position, groups)[where, ids % _GROUP]
    return int(ids[np.argmax(p[ids] / noise)])
