"""The randomised probability transform: a number that is uniform on [0, 1) iff a token came from its distribution."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Interval(NamedTuple):
    """Where a token lies when a distribution is laid out in descending order of mass; tokens of one mass lie together.

    A token drawn from the distribution, and V uniform on [0, 1), make above + V * mass uniform on [0, 1).

    Attributes:
        above: mass of all tokens with more mass than this one.
        mass: mass of all tokens with as much; 0 for a token that can't be drawn, which then lies at the end.
    """

    above: float
    mass: float


def interval(masses: NDArray[np.floating] | NDArray[np.integer], mass: float, total: float) -> Interval:
    """The interval of a token of given mass.

    Args:
        masses: float[M] or counts int[M], >= 0, every token that can be drawn.
        mass: the token's own, as it stands in `masses`, or 0.
        total: the sum of `masses`, > 0.
    """
    if mass <= 0.0:
        return Interval(1.0, 0.0)
    above = float(masses.dot(masses > mass))
    equal = mass * int(np.count_nonzero(masses == mass))
    return Interval(above / total, equal / total)


def uniforms(intervals: NDArray[np.float64], v: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64[N, 2] of intervals and float64[N] of numbers nobody else knows -> float64[N]."""
    return intervals[:, 0] + v * intervals[:, 1]
