"""The law of a continuation's first tokens, over a tree of prefixes at which p was asked for.

A continuation walks down the tree by its own tokens and leaves it at the first prefix that isn't there. Where it leaves
is the outcome, so one joint test covers the first token, the second given the first, and so on, each where enough mass
gets to make a test worth while. Everything here depends on p alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from draftproof.testing.statistics import SUM_TOLERANCE

Prefix = tuple[int, ...]
"""Token ids from the first token of the output on."""

Outcome = tuple[int, ...]
"""The prefix with which a continuation leaves the tree; it ends in REST for all the tokens that don't stand alone."""

REST = -1
LEAST_MASS = 0.005
"""A prefix that fewer continuations reach is not worth a question: of 10,000 it would see fifty."""
_FLOAT32_SUM = 1e-4


class PrefixTree:
    """p at the likeliest prefixes, grown by always asking for the prefix of the largest mass that is missing.

    Attributes:
        length: tokens of a continuation that are looked at.
        rows: p by prefix, float64[V] each, summing to one.
    """

    def __init__(self, length: int, prefixes: int, least_mass: float = LEAST_MASS) -> None:
        """
        Args:
            length: tokens, at least 1.
            prefixes: most prefixes to ask for, at least 1.
            least_mass: prefixes less likely than this are not asked for.
        """
        if length < 1 or prefixes < 1:
            raise ValueError(f"length and prefixes must be at least 1, got {length} and {prefixes}")
        self.length = length
        self.rows: dict[Prefix, NDArray[np.float64]] = {}
        self._masses: dict[Prefix, float] = {(): 1.0}
        self._open: list[tuple[float, Prefix]] = [(-1.0, ())]
        self._prefixes = prefixes
        self._least = least_mass

    def wanted(self) -> Prefix | None:
        """The next prefix to ask p for; None when the tree is complete."""
        if len(self.rows) == self._prefixes or not self._open or -self._open[0][0] < self._least:
            return None
        return self._open[0][1]

    def add(self, p: ArrayLike) -> None:
        """Takes p at the prefix that was wanted.

        Raises:
            ValueError: it is no distribution over the vocabulary.
        """
        if self.wanted() is None:
            raise ValueError("the tree is complete")
        row = np.asarray(p, dtype=np.float64)
        # float32 masses of a large vocabulary sum to one only so far
        if row.ndim != 1 or not np.isfinite(row).all() or (row < 0).any() or abs(row.sum() - 1) > _FLOAT32_SUM:
            raise ValueError(f"p at a prefix must be non-negative and sum to one, it sums to {float(row.sum())!r}")
        if self.rows and len(row) != len(self.rows[()]):
            raise ValueError(f"p over {len(row)} tokens, at the prompt over {len(self.rows[()])}")
        _, prefix = heapq.heappop(self._open)
        row = row / row.sum()
        self.rows[prefix] = row
        if len(prefix) + 1 < self.length:
            here = self._masses[prefix]
            for token in np.flatnonzero(here * row >= self._least).tolist():
                longer = (*prefix, token)
                self._masses[longer] = here * float(row[token])
                heapq.heappush(self._open, (-self._masses[longer], longer))

    def mass(self, prefix: Prefix) -> float:
        """Probability that a continuation begins with a prefix that is in the tree."""
        return self._masses[prefix]


class ContinuationLaw:
    """The law of the outcomes of a complete tree, the unlikely ones at each prefix taken together.

    Attributes:
        masses: of every outcome, in descending order of the outcomes that stand alone; sums to one.
    """

    def __init__(self, tree: PrefixTree, cells: int) -> None:
        """
        Args:
            tree: complete.
            cells: how many of the likeliest outcomes stand alone.
        """
        self._tree = tree
        ranked: list[tuple[float, Outcome]] = []
        for prefix, row in tree.rows.items():
            weights = row * tree.mass(prefix)
            inside = [longer[-1] for longer in tree.rows if longer and longer[:-1] == prefix]
            weights[inside] = 0.0
            most = min(cells, len(weights))
            for token in np.argpartition(-weights, most - 1)[:most].tolist():
                if weights[token] > 0:
                    ranked.append((float(weights[token]), (*prefix, token)))
        ranked.sort(key=lambda item: (-item[0], item[1]))
        self.masses: dict[Outcome, float] = {outcome: mass for mass, outcome in ranked[:cells]}
        for prefix, row in tree.rows.items():
            listed = [longer[-1] for longer in (*tree.rows, *self.masses) if longer and longer[:-1] == prefix]
            rest = row.copy()
            rest[listed] = 0.0
            if (mass := float(rest.sum()) * tree.mass(prefix)) > 0:
                self.masses[*prefix, REST] = mass
        total = sum(self.masses.values())
        assert abs(total - 1) < 1e-6, "the tree's rows sum to one, so its outcomes do"
        self.masses = {outcome: mass / total for outcome, mass in self.masses.items()}
        assert abs(sum(self.masses.values()) - 1) < SUM_TOLERANCE

    @property
    def length(self) -> int:
        """Tokens that a continuation must have."""
        return self._tree.length

    def depth(self, tokens: Sequence[int]) -> int:
        """How many of a continuation's tokens are tested: those up to where it leaves the tree."""
        return len(self.outcome(tokens))

    def outcome(self, tokens: Sequence[int]) -> Outcome:
        """Where a continuation leaves the tree. A token that p gives no mass is an outcome that `masses` lacks.

        Raises:
            ValueError: it is shorter than `length`.
        """
        if len(tokens) < self.length:
            raise ValueError(f"a continuation of {len(tokens)} tokens, {self.length} were wanted")
        prefix: Prefix = ()
        for token in tokens:
            longer = (*prefix, token)
            if longer in self._tree.rows:
                prefix = longer
                continue
            row = self._tree.rows[prefix]
            seen = longer in self.masses or not (0 <= token < len(row) and row[token] > 0)
            return longer if seen else (*prefix, REST)
        raise AssertionError("no prefix in the tree is as long as a continuation")
