"""Who may start: a bounded queue in order of priority, then of arrival."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from draftproof.errors import DeadlineExceededError, OverloadedError, PeerUnavailableError, RequestError


@dataclass(order=True, slots=True)
class _Ticket:
    rank: tuple[int, int]
    turn: asyncio.Future[None] = field(compare=False)


class Admission:
    """Lets as many requests run as the cluster holds, and a bounded number wait.

    Args:
        capacity: requests that may run now; asked on every change.
        queue_limit: most that wait.
        no_capacity: seconds that requests wait while there is no capacity at all.
    """

    def __init__(self, capacity: Callable[[], int], queue_limit: int, no_capacity: float = 30.0) -> None:
        self._capacity = capacity
        self._queue_limit = queue_limit
        self._no_capacity = no_capacity
        self._order = itertools.count()
        self._queue: list[_Ticket] = []
        self._alarm: asyncio.TimerHandle | None = None
        self.running = 0
        self._mean_seconds = 1.0

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._queue)

    @asynccontextmanager
    async def enter(self, priority: int, patience: float | None) -> AsyncIterator[None]:
        """Waits for a turn and holds it.

        Args:
            priority: higher goes first.
            patience: seconds the request may wait; None: for ever.

        Raises:
            OverloadedError: the queue is full; at once, with a retry delay.
            DeadlineExceededError: its turn did not come in time.
            PeerUnavailableError: there was no capacity at all for too long.
        """
        await self._turn(priority, patience)
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            yield
        finally:
            self._mean_seconds += 0.1 * (loop.time() - started - self._mean_seconds)
            self.running -= 1
            self.wake()

    def wake(self) -> None:
        """Admits those whose turn has come; called when capacity may have grown."""
        capacity = self._capacity()
        while self._queue and self.running < capacity:
            turn = heapq.heappop(self._queue).turn
            if not turn.done():  # else its caller is on the way out
                self.running += 1
                turn.set_result(None)
        if self._alarm is not None and (capacity or not self._queue):
            self._alarm.cancel()
            self._alarm = None
        elif self._alarm is None and self._queue and not capacity:
            self._alarm = asyncio.get_running_loop().call_later(self._no_capacity, self._starved)

    def refuse(self, error: RequestError) -> None:
        """Fails all that wait."""
        queue, self._queue = self._queue, []
        for ticket in queue:
            if not ticket.turn.done():
                ticket.turn.set_exception(error)

    async def _turn(self, priority: int, patience: float | None) -> None:
        waiting, capacity = self.waiting, self._capacity()
        if not waiting and self.running < capacity:
            self.running += 1
            return
        if waiting >= self._queue_limit:
            delay = self._mean_seconds * (waiting + 1) / max(1, capacity)
            raise OverloadedError(
                f"{waiting} requests are waiting, the limit is {self._queue_limit} (queue_limit)",
                metadata={"setting": "queue_limit", "limit": str(self._queue_limit)},
                retry_delay=min(5.0, max(0.05, delay)),
            )
        ticket = _Ticket((-priority, next(self._order)), asyncio.get_running_loop().create_future())
        heapq.heappush(self._queue, ticket)
        self.wake()
        try:
            async with asyncio.timeout(patience):
                await ticket.turn
        except TimeoutError:
            self._give_up(ticket)
            raise DeadlineExceededError("the deadline passed while the request waited for its turn") from None
        except asyncio.CancelledError:
            self._give_up(ticket)
            raise

    def _give_up(self, ticket: _Ticket) -> None:
        """Leaves the queue, or gives back a turn that came at the same moment."""
        if ticket in self._queue:
            self._queue.remove(ticket)
            heapq.heapify(self._queue)
        elif not ticket.turn.cancelled() and ticket.turn.exception() is None:
            self.running -= 1
        self.wake()

    def _starved(self) -> None:
        self._alarm = None
        self.refuse(PeerUnavailableError(f"no target was ready for {self._no_capacity:g} s", retry_delay=1.0))
