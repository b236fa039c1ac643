"""Who may start: a bounded queue in order of priority, then of arrival."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from draftproof.errors import DeadlineExceededError, OverloadedError


@dataclass(order=True, slots=True)
class _Ticket:
    rank: tuple[int, int]
    turn: asyncio.Future[None] = field(compare=False)


class Admission:
    """Lets as many requests run as the cluster holds, and a bounded number wait.

    Args:
        capacity: requests that may run now; asked on every change.
        queue_limit: most that wait.
    """

    def __init__(self, capacity: Callable[[], int], queue_limit: int) -> None:
        self._capacity = capacity
        self._queue_limit = queue_limit
        self._order = itertools.count()
        self._queue: list[_Ticket] = []
        self.running = 0
        self._mean_seconds = 1.0

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return sum(not ticket.turn.done() for ticket in self._queue)

    @asynccontextmanager
    async def enter(self, priority: int, patience: float | None) -> AsyncIterator[None]:
        """Waits for a turn and holds it.

        Args:
            priority: higher goes first.
            patience: seconds the request may wait; None: for ever.

        Raises:
            OverloadedError: the queue is full; at once, with a retry delay.
            DeadlineExceededError: its turn did not come in time.
        """
        await self._turn(priority, patience)
        started = asyncio.get_running_loop().time()
        try:
            yield
        finally:
            self._mean_seconds += 0.1 * (asyncio.get_running_loop().time() - started - self._mean_seconds)
            self.running -= 1
            self.wake()

    def wake(self) -> None:
        """Admits those whose turn has come; called when capacity may have grown."""
        while self._queue and self.running < self._capacity():
            ticket = heapq.heappop(self._queue)
            if not ticket.turn.done():
                self.running += 1
                ticket.turn.set_result(None)

    async def _turn(self, priority: int, patience: float | None) -> None:
        waiting = self.waiting
        if not waiting and self.running < self._capacity():
            self.running += 1
            return
        if waiting >= self._queue_limit:
            delay = self._mean_seconds * (waiting + 1) / max(1, self._capacity())
            raise OverloadedError(
                f"{waiting} requests are waiting, the limit is {self._queue_limit} (queue_limit)",
                metadata={"setting": "queue_limit", "limit": str(self._queue_limit)},
                retry_delay=min(5.0, max(0.05, delay)),
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._queue, _Ticket((-priority, next(self._order)), turn))
        try:
            await asyncio.wait_for(asyncio.shield(turn), patience)
        except TimeoutError:
            self._give_up(turn)
            raise DeadlineExceededError("the deadline passed while the request waited for its turn") from None
        except asyncio.CancelledError:
            self._give_up(turn)
            raise

    def _give_up(self, turn: asyncio.Future[None]) -> None:
        """Leaves the queue, or gives back a turn that came at the same moment."""
        if turn.done() and not turn.cancelled():
            self.running -= 1
            self.wake()
        else:
            turn.cancel()
