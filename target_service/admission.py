"""Who holds a KV slot, who waits for one, and who is told to come back later."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from draftproof.errors import OverloadedError
from target_service.session import Session, State


class Admission:
    """Slots handed out in order of arrival; a bounded queue behind them (P4). Pure: the caller passes the time.

    Args:
        slots: KV slots.
        queue_limit: most sessions that wait.
        idle_evict: seconds without a round after which a session gives its slot to one that waits.
        reuse: whether a session uses the KV of others that begin alike: what a freed slot keeps, or a running one's.

    Attributes:
        holding: only sessions that go on from an earlier life get slots; those that have one keep it.
    """

    def __init__(self, slots: int, queue_limit: int, idle_evict: float, *, reuse: bool = False) -> None:
        # freed slots, the one free for longest first, and the tokens whose KV they still hold
        self._free = list(range(slots))
        self._kept: list[Sequence[int]] = [()] * slots
        self._reuse = reuse
        self._slots = slots
        self._queue_limit = queue_limit
        self._idle_evict = idle_evict
        self._waiting: deque[Session] = deque()
        self.holding = False
        self._held: dict[int, Session] = {}
        self._mean_hold = 1.0

    @property
    def waiting(self) -> int:
        """Sessions in the queue."""
        return len(self._waiting)

    @property
    def active(self) -> list[Session]:
        """Sessions that hold a slot, in order of admission."""
        return list(self._held.values())

    def enter(self, session: Session, now: float) -> None:
        """Queues a session.

        Raises:
            OverloadedError: the queue is full; the retry delay is a guess from how long slots have been held.
        """
        if len(self._waiting) >= self._queue_limit and (self.holding or not self._free):
            delay = min(5.0, max(0.05, self._mean_hold * (len(self._waiting) + 1) / self._slots / 2))
            raise OverloadedError(
                f"{len(self._waiting)} sessions are waiting, the limit is {self._queue_limit} (queue_limit)",
                metadata={"setting": "queue_limit", "limit": str(self._queue_limit)},
                retry_delay=delay,
            )
        session.opened_at = now
        self._waiting.append(session)

    def admit(self, now: float) -> list[Session]:
        """Gives free slots to the longest-waiting sessions and returns them; `cached` says what KV they start with."""
        admitted = []
        for session in [s for s in self._waiting if s.continues or not self.holding][: len(self._free)]:
            self._waiting.remove(session)
            session.slot, session.cached = self._choose(session.tokens)
            self._free.remove(session.slot)
            session.donor, session.shared = self._donor(session)
            session.state = State.ACTIVE
            session.active_at = session.opened_at = now
            self._held[session.slot] = session
            admitted.append(session)
        return admitted

    def evictable(self, now: float) -> list[Session]:
        """Idle sessions whose slots the queue could use, longest idle first, no more than are needed."""
        if self.holding:
            return []
        idle = [
            s
            for s in self._held.values()
            if s.pending is None and not s.in_flight and now - s.active_at > self._idle_evict and s.prefill_left() <= 0
        ]
        idle.sort(key=lambda s: s.active_at)
        return idle[: len(self._waiting)]

    @property
    def quiet(self) -> bool:
        """Whether no session has a slot or is on its way back to one."""
        return not self._held and not any(s.continues for s in self._waiting)

    def forget(self) -> None:
        """Nothing that freed slots hold is of use any more."""
        self._kept = [()] * self._slots

    def leave(self, session: Session, now: float) -> None:
        """Frees what the session holds. A slot whose pass is running comes back when the pass ends."""
        if session.state is State.QUEUED and session in self._waiting:
            self._waiting.remove(session)
        session.state = State.CLOSED
        session.donor = None
        for other in self._held.values():
            if other.donor is session:
                other.donor = None
        if session.slot is not None and not session.in_flight:
            self._release(session, now)

    def landed(self, session: Session, now: float) -> None:
        """The pass that held the session's row has ended."""
        session.in_flight = False
        if session.state is State.CLOSED and session.slot is not None:
            self._release(session, now)

    def _choose(self, tokens: Sequence[int]) -> tuple[int, int]:
        """The free slot that holds most of the tokens' beginning, and how much; the last token is fed in any case.

        A slot is not taken for a short beginning of a long text, as every prompt of one system has it, while an empty
        one is there.
        """
        # max() takes the first of equals: the one free for longest
        slot = max(self._free, key=lambda s: common_prefix(self._kept[s], tokens))
        common = min(common_prefix(self._kept[slot], tokens), len(tokens) - 1)
        if 2 * common < len(self._kept[slot]):
            empty = next((s for s in self._free if not self._kept[s]), None)
            if empty is not None:
                return empty, 0
        return slot, common

    def _donor(self, session: Session) -> tuple[Session | None, int]:
        """The running session to copy the longest beginning from, and its length.

        What isn't computed yet is waited for only where that saves half of the session's own work or more. The wait
        ends without the donor's peer: it is for tokens that the donor computes in any case.
        """
        best, shared = None, session.cached
        if not self._reuse:
            return best, shared
        alone = len(session.tokens) - 1 - session.cached
        for other in self._held.values():
            if other.state is State.CLOSED:
                continue
            reach = min(max(other.cached, len(other.tokens) - 1), len(session.tokens) - 1)
            common = min(common_prefix(other.tokens, session.tokens), reach)
            computed = other.cached >= common
            if common > shared and (computed or 2 * (common - session.cached) >= alone):
                best, shared = other, common
        return best, shared

    def _release(self, session: Session, now: float) -> None:
        assert session.slot is not None
        del self._held[session.slot]
        self._free.append(session.slot)
        # nothing past `cached`: thrown-away proposals and what came after a cut are not the session's text (G1)
        self._kept[session.slot] = session.tokens[: session.cached] if self._reuse else ()
        session.slot = None
        self._mean_hold += 0.1 * (now - session.opened_at - self._mean_hold)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common beginning."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
