"""Whether to draft ahead of the verdict: pure policy, no clocks.

At a distance, or with a machine to itself, a draft works ahead for nothing. On cores that it shares with the target,
or with other sessions, every step ahead may hold up somebody. Which of the two it is can't be known beforehand, so it
is measured: rounds of one draft–target pair by turns with and without, in stretches, and the way that takes less time
stays. A cycle counts from one block's way out to the next one's, so it holds all that may be gained or lost. Now and
then a stretch of the other way looks whether things have changed; each that changes nothing doubles the time to the
next.

The answer depends on how long past rounds took, and no text depends on the answer (`draft_service.ahead`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

_STRETCH = 16
"""Rounds of one way before the other is tried."""
_TRIALS = 4
"""Stretches before the first choice."""
_REST_FIRST, _REST_LAST = 256, 4096
"""Rounds between looks at the other way."""
_WINDOW = 32
"""Cycles of one length and way that are remembered."""
_DOUBTED = 4
"""Of those, how many still count when a look begins."""
_KEPT = 0.875
"""Share of the shortest that count: a stall of the machine says nothing about either way."""
_GAIN = 0.01
"""Share of a cycle that it must save."""


@dataclass(slots=True)
class AheadControl:
    """Decides for all sessions of one draft–target pair.

    Args:
        fixed: always or never; None decides by what cycles take.
    """

    fixed: bool | None = None
    _on: bool = True
    _left: int = _STRETCH
    _looks: int = _TRIALS - 1
    _best: bool | None = None
    _rest: int = _REST_FIRST
    _cycles: dict[tuple[int, bool], deque[float]] = field(default_factory=dict)

    def choose(self) -> bool:
        """Whether the next block may be drafted while the verdict on this one is out."""
        if self.fixed is not None:
            return self.fixed
        if not self._left:
            self._turn()
        self._left -= 1
        return self._on

    def learn(self, gamma: int, ahead: bool, seconds: float) -> None:
        """Takes the time from one block's way out to the next one's, waits for the client left out.

        Args:
            gamma: proposals of the first; cycles of different lengths can't be compared.
            ahead: what was chosen for it.
        """
        self._cycles.setdefault((gamma, ahead), deque(maxlen=_WINDOW)).append(seconds)

    def gain(self) -> float:
        """Share of a cycle that drafting ahead saves, as far as is known; 0 where it isn't."""
        saved = total = 0.0
        for (gamma, ahead), with_it in self._cycles.items():
            without = self._cycles.get((gamma, False))
            if not ahead or without is None:
                continue
            weight = min(len(with_it), len(without))
            saved += weight * (_mean(without) - _mean(with_it))
            total += weight * _mean(without)
        return saved / total if total else 0.0

    def _turn(self) -> None:
        if self._looks:
            self._looks -= 1
            self._on, self._left = not self._on, _STRETCH
            for (_, ahead), cycles in self._cycles.items():
                while ahead is self._on and self._best is not None and len(cycles) > _DOUBTED:
                    cycles.popleft()
            return
        best = self.gain() >= _GAIN
        self._rest = _REST_FIRST if best is not self._best else min(2 * self._rest, _REST_LAST)
        self._best = self._on = best
        self._left, self._looks = self._rest, 1


def _mean(cycles: Collection[float]) -> float:
    kept = sorted(cycles)[: max(1, int(_KEPT * len(cycles)))]
    return sum(kept) / len(kept)
