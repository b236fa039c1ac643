"""Two ways to bet at even odds. Wealth begins at 1 and is a martingale while what is bet on is as it should be.

A call takes all that was observed in one go, and its stakes depend on earlier calls alone. Wealth is the mean over a
fixed family of strategies, so that it lives off the best of them but for the logarithm of their number. Everything is
kept as logarithms: wealth grows past float64.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Bets(Protocol):
    """Wealth of one test, and what it has seen."""

    @property
    def log_wealth(self) -> float:
        """Natural logarithm of the wealth, 0 at first."""
        ...

    @property
    def deviation(self) -> float:
        """Size of the deviation seen so far; signed where it has a direction."""
        ...

    def observe(self, values: NDArray[np.float64]) -> None:
        """Settles the bets on float64[N], drawn one after the other."""
        ...


class UniformBets:
    """Bets on numbers in [0, 1] that should be uniform, whatever came before each.

    A strategy divides [0, 1] into equal cells and stakes on each the share (seen there + a) / (seen + cells * a), with
    its own number of cells and prior weight a: small weights learn large deviations fast, large ones small deviations
    at little cost.
    """

    CELLS = 64
    _GRIDS = (4, 16, 64)
    _WEIGHTS = np.array([[0.5], [8.0], [128.0], [2048.0]])

    def __init__(self) -> None:
        self._seen = np.zeros(self.CELLS)
        self._wealth = np.zeros((len(self._GRIDS), len(self._WEIGHTS)))
        self._stakes = self._log_stakes()

    @property
    def log_wealth(self) -> float:
        """Natural logarithm of the wealth."""
        return _log_mean(self._wealth)

    @property
    def deviation(self) -> float:
        """Total variation between what was seen, in 16 cells, and the uniform distribution: 0..1."""
        count = self._seen.sum()
        if not count:
            return 0.0
        return float(np.abs(_coarser(self._seen, 16) / count - 1 / 16).sum() / 2)

    def observe(self, values: NDArray[np.float64]) -> None:
        """Settles the bets on float64[N] in [0, 1]."""
        if not len(values):
            return
        cells = np.minimum((values * self.CELLS).astype(np.int64), self.CELLS - 1)
        seen = np.bincount(cells, minlength=self.CELLS)
        for grid, (size, stakes) in enumerate(zip(self._GRIDS, self._stakes, strict=True)):
            self._wealth[grid] += stakes @ _coarser(seen, size)
        self._seen += seen
        self._stakes = self._log_stakes()

    def densities(self) -> NDArray[np.float64]:
        """What each strategy's wealth is multiplied by in each of the finest cells: float64[S, CELLS], rows mean 1."""
        finest = [np.repeat(stakes, self.CELLS // stakes.shape[1], axis=1) for stakes in self._stakes]
        densities: NDArray[np.float64] = np.exp(np.concatenate(finest))
        return densities

    def _log_stakes(self) -> list[NDArray[np.float64]]:
        """Of each grid's strategies in each of its cells: float64[W, cells]."""
        total = self._seen.sum()
        return [
            np.log((_coarser(self._seen, size) + self._WEIGHTS) * (size / (total + size * self._WEIGHTS)))
            for size in self._GRIDS
        ]


class DriftBets:
    """Bets on numbers in [-bound, bound] that should have mean 0, whatever came before each.

    A strategy's wealth is multiplied by 1 + f * value / bound, with its own fixed f in (-1, 1).
    """

    _FRACTIONS = np.array([sign * 0.9 * 2.0**-halvings for halvings in range(8) for sign in (1, -1)])

    def __init__(self, bound: float) -> None:
        """
        Args:
            bound: > 0.
        """
        self.bound = bound
        self.fractions = self._FRACTIONS / bound
        self._wealth = np.zeros(len(self.fractions))
        self._sum = 0.0
        self._count = 0

    @property
    def log_wealth(self) -> float:
        """Natural logarithm of the wealth."""
        return _log_mean(self._wealth)

    @property
    def deviation(self) -> float:
        """The mean of what was seen."""
        return self._sum / self._count if self._count else 0.0

    def observe(self, values: NDArray[np.float64]) -> None:
        """Settles the bets on float64[N] within the bound."""
        if not len(values):
            return
        # what a faulty verifier counts may lie anywhere; wealth has to stay above 0
        values = values.clip(-self.bound, self.bound)
        self._wealth += np.log1p(self.fractions[:, None] * values).sum(axis=1)
        self._sum += float(values.sum())
        self._count += len(values)


def _log_mean(logs: NDArray[np.float64]) -> float:
    top = float(logs.max())
    return top + math.log(float(np.exp(logs - top).mean()))


def _coarser(cells: NDArray[np.generic], size: int) -> NDArray[np.float64]:
    """Counts in fewer, wider cells."""
    merged: NDArray[np.float64] = cells.reshape(size, -1).sum(axis=1)
    return merged
