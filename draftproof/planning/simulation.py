"""A discrete-event simulation of a cluster: what the formulae of `forecast` are checked against.

Streams cycle: draft γ proposals, send, wait for the target, be verified, receive, commit. A draft advances all its open
blocks together, one step at a time; blocks join between steps. A target verifies all that waits in one pass; the next
begins when it is done, or a moment later where those who are about to come back gain more by it than the others lose
(`target_service.gathering`). A link carries one block after another. Where draft and target share cores, whatever
computes gets an equal part of them.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from draftproof.planning.setup import Setup


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a simulation showed.

    Attributes:
        tokens_per_second: of all streams together.
        cycle: mean seconds of a round, as a stream sees it.
        target_busy, draft_busy, link_busy: shares of the time, means over workers.
        batch: mean rounds a pass.
    """

    tokens_per_second: float
    cycle: float
    target_busy: float
    draft_busy: float
    link_busy: float
    batch: float


_GAIN, _FORGET = 0.25, 1.02
"""Of a stream's pace and of the shortest pass, as in `target_service.gathering`."""


class _Clock:
    """Events in order of time: fixed delays, and computations that may share cores."""

    def __init__(self, shared: bool) -> None:
        self.now = 0.0
        self._shared = shared
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._jobs: dict[int, tuple[float, Callable[[], None]]] = {}

    def after(self, seconds: float, then: Callable[[], None]) -> None:
        """Calls `then` that much later."""
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), then))

    def compute(self, seconds: float, then: Callable[[], None]) -> None:
        """Calls `then` when that much computing is done."""
        if self._shared:
            self._jobs[next(self._numbers)] = (seconds, then)
        else:
            self.after(seconds, then)

    def advance(self) -> None:
        """Goes to the next event."""
        rate = 1.0 / max(1, len(self._jobs))
        job = min(self._jobs, key=lambda key: self._jobs[key][0], default=None)
        done = self.now + self._jobs[job][0] / rate if job is not None else float("inf")
        moment = min(done, self._events[0][0] if self._events else float("inf"))
        worked = (moment - self.now) * rate
        self._jobs = {key: (left - worked, then) for key, (left, then) in self._jobs.items()}
        self.now = moment
        if job is not None and done == moment:
            self._jobs.pop(job)[1]()
        else:
            heapq.heappop(self._events)[2]()


@dataclass(slots=True, eq=False)
class _Stream:
    drafted: int = 0
    wanted: int = 0
    block: int = 0
    """Number of the block in the making; a step that ends for an older one was in vain."""
    out: bool = False
    ready: bool = False
    left_at: float | None = None
    pace: float | None = None
    deviation: float = 0.0


@dataclass(slots=True, eq=False)
class _Draft:
    open: deque[_Stream] = field(default_factory=deque)
    busy: bool = False
    work: float = 0.0
    link_free: float = 0.0
    link_work: float = 0.0


@dataclass(slots=True, eq=False)
class _Target:
    waiting: list[_Stream] = field(default_factory=list)
    streams: list[_Stream] = field(default_factory=list)
    busy: bool = False
    work: float = 0.0
    pass_seconds: float = 0.0
    decided: int = 0
    """Number of the latest decision to wait; older ones no longer hold."""


class Simulation:
    """One run.

    Args:
        setup: the cluster.
        seed: of the acceptances; and of a jitter of 2 %, without which streams march in step for ever.
    """

    def __init__(self, setup: Setup, seed: int = 0) -> None:
        self._setup = setup
        self._luck = random.Random(seed)
        self._clock = _Clock(setup.costs.shared)
        self._drafts = [_Draft() for _ in range(setup.drafts)]
        self._targets = [_Target() for _ in range(setup.targets)]
        self._streams = [_Stream() for _ in range(setup.streams)]
        for i, stream in enumerate(self._streams):
            self._targets[i % setup.targets].streams.append(stream)
        self._tokens = self._rounds = self._passes = self._batched = 0

    def run(self, rounds: int = 400, warm_up: int = 40) -> Outcome:
        """Runs so many rounds of each stream, in the mean, after a warm-up that doesn't count."""
        streams = len(self._streams)
        for i in range(streams):
            # they come one after another
            self._clock.after(i * self._setup.costs.draft_step / streams, partial(self._begin, i))
        while self._rounds < warm_up * streams:
            self._clock.advance()
        start, counted = self._clock.now, self._counts()
        while self._rounds < (warm_up + rounds) * streams:
            self._clock.advance()
        seconds = self._clock.now - start
        tokens, done, passes, batched, target, draft, link = (
            after - before for after, before in zip(self._counts(), counted, strict=True)
        )
        return Outcome(
            tokens_per_second=tokens / seconds,
            cycle=streams * seconds / done,
            target_busy=target / seconds / len(self._targets),
            draft_busy=draft / seconds / len(self._drafts),
            link_busy=link / seconds / len(self._drafts),
            batch=batched / passes,
        )

    def _counts(self) -> tuple[float, ...]:
        return (
            self._tokens,
            self._rounds,
            self._passes,
            self._batched,
            sum(target.work for target in self._targets),
            sum(draft.work for draft in self._drafts),
            sum(draft.link_work for draft in self._drafts),
        )

    def _jittered(self, seconds: float) -> float:
        return seconds * self._luck.uniform(0.98, 1.02)

    def _way(self) -> float:
        """Seconds of one way between draft and target, half a round's overhead included."""
        return self._jittered(self._setup.link.rtt / 2 + self._setup.costs.overhead / 2)

    # -- the draft -----------------------------------------------------------------------------------------------

    def _begin(self, i: int) -> None:
        """A new block for stream i, after a verdict."""
        stream = self._streams[i]
        stream.drafted, stream.wanted, stream.out, stream.ready = 0, self._setup.gamma, False, False
        stream.block += 1
        if not stream.wanted:
            self._send(i)
            return
        self._draft(i)

    def _draft(self, i: int) -> None:
        draft, stream = self._drafts[i % len(self._drafts)], self._streams[i]
        if stream not in draft.open:
            draft.open.append(stream)
        if not draft.busy:
            self._step(draft)

    def _step(self, draft: _Draft) -> None:
        batch = [(stream, stream.block) for stream in draft.open]
        draft.busy = bool(batch)
        if not batch:
            return
        seconds = self._jittered(self._setup.costs.step(len(batch)))

        def done() -> None:
            draft.work += seconds
            for stream, block in batch:
                if stream.block != block:
                    continue
                stream.drafted += 1
                if stream.drafted >= stream.wanted:
                    draft.open.remove(stream)
                    self._drafted(self._streams.index(stream))
            self._step(draft)

        self._clock.compute(seconds, done)

    def _drafted(self, i: int) -> None:
        if self._streams[i].out:
            self._streams[i].ready = True
        else:
            self._send(i)

    def _send(self, i: int) -> None:
        setup, clock = self._setup, self._clock
        draft, stream = self._drafts[i % len(self._drafts)], self._streams[i]
        occupied = setup.link.seconds(setup.block_bytes)
        begin = max(clock.now, draft.link_free)
        draft.link_free = begin + occupied
        draft.link_work += occupied
        clock.after(draft.link_free - clock.now + self._way(), partial(self._arrive, i))
        stream.out, stream.ready = True, False
        if setup.ahead and setup.gamma:
            # one step more: the guess of the bonus token
            stream.drafted, stream.wanted = 0, setup.gamma + 1
            stream.block += 1
            self._draft(i)

    # -- the target ----------------------------------------------------------------------------------------------

    def _arrive(self, i: int) -> None:
        target, stream = self._targets[i % len(self._targets)], self._streams[i]
        if stream.left_at is not None:
            away = self._clock.now - stream.left_at
            stream.left_at = None
            if stream.pace is None:
                stream.pace, stream.deviation = away, away / 2
            stream.deviation += _GAIN * (abs(away - stream.pace) - stream.deviation)
            stream.pace += _GAIN * (away - stream.pace)
        target.waiting.append(stream)
        if not target.busy:
            self._gather(target)

    def _gather(self, target: _Target) -> None:
        """Begins a pass, or waits for streams that are about to come back where that gains more than it costs."""
        now, ready, best, gain = self._clock.now, len(target.waiting), 0.0, 0.0
        if not ready:
            return
        back = [s.left_at + s.pace + 2 * s.deviation for s in target.streams if s.left_at is not None and s.pace]
        for waiting, moment in enumerate(sorted(at for at in back if at > now), 1):
            gained = waiting * (target.pass_seconds - (moment - now)) - ready * (moment - now)
            if gained > gain:
                best, gain = moment, gained
        target.decided += 1
        if gain:
            self._clock.after(best - now, partial(self._waited, target, target.decided))
        else:
            self._pass(target)

    def _waited(self, target: _Target, decided: int) -> None:
        if target.decided == decided and not target.busy:
            self._gather(target)

    def _pass(self, target: _Target) -> None:
        batch, target.waiting, target.busy = target.waiting, [], True
        seconds = self._jittered(self._setup.costs.verify(len(batch), self._setup.gamma))
        known = target.pass_seconds
        target.pass_seconds = min(seconds, _FORGET * known) if known else seconds

        def done() -> None:
            target.work += seconds
            target.busy = False
            self._passes += 1
            self._batched += len(batch)
            for stream in batch:
                stream.left_at = self._clock.now
                self._clock.after(self._way(), partial(self._verdict, self._streams.index(stream)))
            self._gather(target)

        self._clock.compute(seconds, done)

    def _verdict(self, i: int) -> None:
        setup, stream = self._setup, self._streams[i]
        accepted = 0
        while accepted < setup.gamma and self._luck.random() < setup.accepted(accepted):
            accepted += 1
        self._tokens += accepted + 1
        self._rounds += 1
        guess = setup.accepted(setup.gamma) if setup.guess is None else setup.guess
        if not setup.ahead or accepted < setup.gamma or self._luck.random() >= guess or not setup.gamma:
            self._begin(i)
        elif stream.ready:
            self._send(i)
        else:
            stream.out = False  # sent as soon as it is complete


def simulate(setup: Setup, rounds: int = 400, seed: int = 0) -> Outcome:
    """Runs a simulation of `rounds` rounds a stream."""
    return Simulation(setup, seed).run(rounds)
