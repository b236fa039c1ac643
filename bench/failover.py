"""Kill -9 under load: what 32 streams notice when a draft dies, then a target, then all of one kind.

`python -m bench.failover [--rounds N] [--streams N] [--tokens N] [--seed N]`: two targets, two drafts and an
orchestrator as processes over the table engine, and a keeper that starts again whatever died. A third of the streams
is greedy, a third seeded at a fixed gamma, a third unseeded. Each round kills at random moments and fails unless every
stream is complete, says nothing twice, and, greedy or seeded, equals the undisturbed run. A recovery is the time
between the last token before a fallback and the first one after it, as the client sees it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.fake_cluster import FakeCluster, Process, Speed
from draftproof import AsyncClient, Completion
from draftproof.client import NO_RETRIES
from draftproof.rpc.channel import aio_channel
from draftproof.v1 import orchestrator_pb2, orchestrator_pb2_grpc

GAMMA = 3
KINDS = ("greedy", "seeded", "unseeded")
# a seeded request waits for a draft of its weights as long as a process may take to start, so that it stays the same
OPTIONS = ("--probe-interval", "0.1", "--lost-after", "1.0", "--draft-wait", "60", "--gamma", str(GAMMA))
MOMENTS = ((0.05, 0.2), (0.3, 0.5), (0.6, 0.8))
"""When the three kills of a round come: bounds of the share of its tokens that have been streamed."""
DISTURBANCES = ("one draft", "one target", "all drafts", "all targets")
_NOTE = re.compile(r"^went on after (\d+) tokens \((\w+)\)")
_IN_FLIGHT = 1.0
"""Seconds for which tokens sent before a kill may still arrive after it."""
_PATIENCE = 120.0


class BrokenStream(Exception):
    """A stream is not what it should be."""


@dataclass(frozen=True, slots=True)
class Stream:
    """One finished stream.

    Attributes:
        arrivals: when chunks came, monotonic seconds, and how many tokens had come by then.
    """

    completion: Completion
    arrivals: list[tuple[float, int]]

    def fallbacks(self) -> Iterator[tuple[float, float, str]]:
        """Last arrival before each fallback, first one after it, and its reason."""
        seen = set()
        for note in self.completion.notes:
            found = _NOTE.match(note)
            if found is None or found[1] in seen:
                continue  # several attempts at the same place are one interruption
            seen.add(found[1])
            for (before, tokens), (after, _) in zip(self.arrivals, self.arrivals[1:], strict=False):
                if tokens == int(found[1]):
                    yield before, after, found[2]


@dataclass(slots=True)
class Findings:
    """What the rounds showed; a broken stream raises instead.

    Attributes:
        streams: finished streams.
        tokens: all their tokens.
        compared: of them greedy or seeded, equal to the undisturbed run.
        recoveries: seconds by disturbance.
        other: interruptions by reason that no kill explains.
        idle: kills that no stream noticed.
        fallbacks: by reason, as the orchestrator counts them.
        starts: seconds from a kill to its successor's serving.
    """

    streams: int = 0
    tokens: int = 0
    compared: int = 0
    recoveries: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in DISTURBANCES})
    other: Counter[str] = field(default_factory=Counter)
    idle: int = 0
    fallbacks: dict[str, int] = field(default_factory=dict)
    starts: list[float] = field(default_factory=list)


class Keeper:
    """Starts again what died, at its old address."""

    def __init__(self, processes: list[Process], starts: list[float]) -> None:
        self._processes = processes
        self._starts = starts

    async def run(self) -> None:
        """Keeps all of them until cancelled."""
        await asyncio.gather(*(self._keep(process) for process in self._processes))

    async def _keep(self, process: Process) -> None:
        while True:
            await asyncio.sleep(0.05)
            if process.running is None or process.running.poll() is None:
                continue
            died = time.monotonic()
            process.start()
            with suppress(RuntimeError):  # killed once more while it started
                await asyncio.to_thread(process.wait)
                self._starts.append(time.monotonic() - died)


def requests(count: int, tokens: int) -> list[dict[str, Any]]:
    """Greedy, seeded and unseeded requests by turns, each with another prompt."""
    settings: dict[str, dict[str, Any]] = {
        "greedy": {"temperature": 0.0},
        "seeded": {"gamma": GAMMA},
        "unseeded": {},
    }
    found = []
    for i in range(count):
        kind = KINDS[i % len(KINDS)]
        prompt = f"{chr(97 + i % 26)}hello{chr(97 + i // 26)}"
        more = {"seed": i} if kind == "seeded" else {}
        found.append({"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, **settings[kind], **more})
    return found


class Load:
    """All streams at once, again and again.

    Attributes:
        committed: tokens that have come in this turn.
    """

    def __init__(self, address: str, wanted: list[dict[str, Any]]) -> None:
        self._client = AsyncClient(address, retries=NO_RETRIES, timeout=_PATIENCE)
        self._wanted = wanted
        self._mark, self._reached = 0.0, asyncio.Event()
        self.committed = 0

    @property
    def total(self) -> int:
        """Tokens of a turn."""
        return sum(request["max_tokens"] for request in self._wanted)

    async def turn(self) -> list[Stream]:
        """Streams every request to its end."""
        self.committed = 0
        return await asyncio.gather(*(self._stream(request) for request in self._wanted))

    async def until(self, share: float) -> None:
        """Returns once that share of the turn's tokens has come."""
        self._mark, self._reached = share * self.total, asyncio.Event()
        await self._reached.wait()

    async def close(self) -> None:
        """Closes the client."""
        await self._client.aclose()

    async def _stream(self, request: dict[str, Any]) -> Stream:
        arrivals, ids, text = [], [], ""
        async with self._client.stream(**request) as stream:
            async for chunk in stream:
                self.committed += len(chunk.tokens)
                if self.committed >= self._mark:
                    self._reached.set()
                ids += [token.id for token in chunk.tokens]
                text += "".join(token.text for token in chunk.tokens)
                arrivals.append((time.monotonic(), len(ids)))
        done = stream.completion
        if not len(ids) == done.usage.completion_tokens == done.stats.committed == request["max_tokens"]:
            raise BrokenStream(f"{len(ids)} tokens came, usage and stats say {done.usage}, {done.stats}")
        if tuple(ids) != tuple(done.token_ids) or text != done.text or not done.lossless:
            raise BrokenStream(f"what was streamed is not what the stream says it was: {text!r}, {done}")
        return Stream(done, arrivals)


async def disturb(cluster: FakeCluster, load: Load, luck: random.Random) -> list[tuple[float, str]]:
    """Kills a draft, then a target, then all of one kind, at random moments; says when it did what."""
    last = luck.choice(("draft", "target"))
    kills = []
    for (low, high), role, everyone in zip(MOMENTS, ("draft", "target", last), (False, False, True), strict=True):
        await load.until(luck.uniform(low, high))
        processes: list[Process] = getattr(cluster, role)
        victims = processes if everyone else [await _victim(cluster, processes, luck)]
        kills.append((time.monotonic(), f"all {role}s" if everyone else f"one {role}"))
        for process in victims:
            process.kill()
    return kills


async def run(rounds: int, streams: int, tokens: int, seed: int, say: bool = True) -> Findings:
    """Runs the rounds.

    Raises:
        BrokenStream: a token was lost, came twice, or is another than undisturbed; or a worker didn't let go.
        RequestError: a stream failed.
    """
    findings, luck = Findings(), random.Random(seed)
    target, draft = Speed(0.02, slots=streams), Speed(0.001, noise=0.2, slots=2 * streams)
    with FakeCluster([target] * 2, [draft] * 2, OPTIONS, gamma=GAMMA) as cluster:
        await ready(cluster)
        load = Load(cluster.orchestrator.address, requests(streams, tokens))
        undisturbed = await load.turn()
        keeper = asyncio.create_task(Keeper([*cluster.target, *cluster.draft], findings.starts).run())
        try:
            for number in range(rounds):
                async with asyncio.TaskGroup() as group:
                    turn = group.create_task(load.turn())
                    kills = group.create_task(disturb(cluster, load, luck))
                _compare(turn.result(), undisturbed, findings)
                _attribute(turn.result(), kills.result(), findings)
                await ready(cluster)
                if say:
                    print(f"round {number + 1}: {dict(await _fallbacks(cluster))}", flush=True)
            findings.fallbacks = await _fallbacks(cluster)
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
            await load.close()
    return findings


async def ready(cluster: FakeCluster) -> None:
    """Waits until every worker is ready and holds nothing.

    Raises:
        BrokenStream: that does not come true.
    """
    for _ in range(600):
        workers = await _workers(cluster)
        if all(w.state == orchestrator_pb2.WORKER_STATE_READY and not w.sessions for w in workers):
            return
        await asyncio.sleep(0.1)
    raise BrokenStream(f"the fleet did not recover: {workers}")


async def _victim(cluster: FakeCluster, processes: list[Process], luck: random.Random) -> Process:
    """One that serves requests; one that starts would be missed by nobody."""
    busy = {worker.address for worker in await _workers(cluster) if worker.sessions}
    return luck.choice([process for process in processes if process.address in busy] or processes)


async def _workers(cluster: FakeCluster) -> list[orchestrator_pb2.Worker]:
    async with aio_channel(cluster.orchestrator.address) as channel:
        stub = orchestrator_pb2_grpc.OrchestratorServiceStub(channel)
        answer = await stub.ListWorkers(orchestrator_pb2.ListWorkersRequest(), timeout=10)
    return list(answer.workers)


async def _fallbacks(cluster: FakeCluster) -> dict[str, int]:
    async with aio_channel(cluster.orchestrator.address) as channel:
        stub = orchestrator_pb2_grpc.OrchestratorServiceStub(channel)
        stats = await stub.Stats(orchestrator_pb2.StatsRequest(), timeout=10)
    if stats.failed:
        raise BrokenStream(f"the orchestrator counts failed requests: {dict(stats.failed)}")
    return {reason: count for reason, count in stats.fallbacks.items() if count}


def _compare(found: list[Stream], undisturbed: list[Stream], findings: Findings) -> None:
    for index, (stream, same) in enumerate(zip(found, undisturbed, strict=True)):
        findings.streams += 1
        findings.tokens += len(stream.completion.token_ids)
        if KINDS[index % len(KINDS)] == "unseeded":
            continue
        if stream.completion.token_ids != same.completion.token_ids or stream.completion.text != same.completion.text:
            raise BrokenStream(f"stream {index} differs from the undisturbed run; notes: {stream.completion.notes}")
        findings.compared += 1


def _attribute(found: list[Stream], kills: list[tuple[float, str]], findings: Findings) -> None:
    noticed = set()
    for stream in found:
        for before, after, reason in stream.fallbacks():
            cause = next((kill for kill in kills if before - _IN_FLIGHT <= kill[0] <= after), None)
            if cause is None:
                findings.other[reason] += 1
            else:
                noticed.add(cause)
                findings.recoveries[cause[1]].append(after - before)
    findings.idle += len(set(kills) - noticed)


def main() -> None:
    """Runs the benchmark and prints its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=300, help="of each stream")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and the victims")
    parser.add_argument("--out", type=Path, default=Path("bench-failover.json"))
    args = parser.parse_args()
    findings = asyncio.run(run(args.rounds, args.streams, args.tokens, args.seed))
    print(f"{findings.streams} streams complete, {findings.tokens} tokens, none lost, none twice")
    print(f"{findings.compared} greedy and seeded streams, each equal to the undisturbed run")
    print(f"fallbacks {findings.fallbacks}; kills that no stream noticed: {findings.idle}")
    print(f"a killed process served again after {statistics.median(findings.starts):.1f} s (median)")
    print(f"{'killed':<14}{'recoveries':>12}{'median s':>10}{'p95 s':>8}{'max s':>8}")
    for name, seconds in findings.recoveries.items():
        if len(seconds) > 1:
            p95 = statistics.quantiles(seconds, n=20)[-1]
            print(f"{name:<14}{len(seconds):>12}{statistics.median(seconds):>10.2f}{p95:>8.2f}{max(seconds):>8.2f}")
    print(f"interruptions without a kill: {dict(findings.other)}")
    args.out.write_text(json.dumps(asdict(findings), indent=1))


if __name__ == "__main__":
    main()
