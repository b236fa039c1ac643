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
import statistics
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.fake_cluster import FakeCluster, Process, Speed
from bench.streams import GAMMA, KINDS, BrokenStream, Load, Stream, requests
from draftproof.errors import RequestError
from draftproof.rpc.channel import aio_channel
from draftproof.v1 import orchestrator_pb2, orchestrator_pb2_grpc

# a seeded request waits for a draft of its weights as long as a process may take to start, so that it stays the same
OPTIONS = ("--probe-interval", "0.1", "--lost-after", "1.0", "--draft-wait", "60", "--gamma", str(GAMMA))
MOMENTS = ((0.05, 0.2), (0.3, 0.5), (0.6, 0.8))
"""When the three kills of a round come: bounds of the share of its tokens that have been streamed."""
DISTURBANCES = ("one draft", "one target", "all drafts", "all targets")
_IN_FLIGHT = 1.0
"""Seconds for which tokens sent before a kill may still arrive after it."""


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
        problem: what ended the rounds early, if anything did.
    """

    streams: int = 0
    tokens: int = 0
    compared: int = 0
    recoveries: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in DISTURBANCES})
    other: Counter[str] = field(default_factory=Counter)
    idle: int = 0
    fallbacks: dict[str, int] = field(default_factory=dict)
    starts: list[float] = field(default_factory=list)
    problem: str = ""


class Keeper:
    """Starts again what died, at its old address."""

    def __init__(self, processes: list[Process], starts: list[float]) -> None:
        self._processes = processes
        self._starts = starts
        self._died: dict[str, float] = {}

    def down(self) -> dict[str, float]:
        """Seconds for which those that don't serve yet have been dead, by name."""
        return {name: round(time.monotonic() - died, 1) for name, died in self._died.items()}

    async def run(self) -> None:
        """Keeps all of them until cancelled."""
        await asyncio.gather(*(self._keep(process) for process in self._processes))

    async def _keep(self, process: Process) -> None:
        while True:
            await asyncio.sleep(0.05)
            if process.running is None or process.running.poll() is None:
                continue
            died = self._died.setdefault(process.name, time.monotonic())
            process.start()
            with suppress(RuntimeError):  # killed once more while it started
                await asyncio.to_thread(process.wait)
                self._starts.append(time.monotonic() - died)
                del self._died[process.name]


async def disturb(cluster: FakeCluster, load: Load, luck: random.Random) -> list[tuple[float, str]]:
    """Kills a draft, then a target, then all of one kind, at random moments; says when it did what."""
    last = luck.choice(("draft", "target"))
    kills = []
    for (low, high), role, everyone in zip(MOMENTS, ("draft", "target", last), (False, False, True), strict=True):
        await load.until(luck.uniform(low, high))
        processes: list[Process] = getattr(cluster, role)
        victims = processes if everyone else [luck.choice(await _busy(cluster, processes))]
        kills.append((time.monotonic(), f"all {role}s" if everyone else f"one {role}"))
        for process in victims:
            process.kill()
    return kills


async def run(findings: Findings, rounds: int, streams: int, tokens: int, seed: int, say: bool = True) -> None:
    """Runs the rounds and notes what they show.

    Raises:
        BrokenStream: a stream failed, lost a token, said one twice, or another than undisturbed; or a worker didn't let
            go. It may come in an ExceptionGroup.
    """
    luck = random.Random(seed)
    target, draft = Speed(0.02, slots=streams), Speed(0.001, noise=0.2, slots=2 * streams)
    with FakeCluster([target] * 2, [draft] * 2, OPTIONS, gamma=GAMMA) as cluster:
        await ready(cluster)
        load = Load(cluster.orchestrator.address, requests(streams, tokens))
        undisturbed = await load.turn()
        keeper = Keeper([*cluster.target, *cluster.draft], findings.starts)
        keeping = asyncio.create_task(keeper.run())
        try:
            for number in range(rounds):
                try:
                    async with asyncio.TaskGroup() as group:
                        turn = group.create_task(load.turn())
                        kills = group.create_task(disturb(cluster, load, luck))
                except* RequestError as failed:
                    problem = f"a stream failed in round {number + 1}; seconds for which workers were down by then"
                    raise BrokenStream(f"{problem}: {keeper.down()}") from failed
                _compare(turn.result(), undisturbed, findings)
                _attribute(turn.result(), kills.result(), findings)
                await ready(cluster)
                if say:
                    print(f"round {number + 1}: {dict(await _fallbacks(cluster))}", flush=True)
            findings.fallbacks = await _fallbacks(cluster)
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await load.close()


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


async def _busy(cluster: FakeCluster, processes: list[Process]) -> list[Process]:
    """Those that serve requests, once there are any; one that starts would be missed by nobody."""
    for _ in range(100):
        addresses = {worker.address for worker in await _workers(cluster) if worker.sessions}
        if busy := [process for process in processes if process.address in addresses]:
            return busy
        await asyncio.sleep(0.1)
    raise BrokenStream(f"none of {', '.join(process.name for process in processes)} serves any stream")


async def _workers(cluster: FakeCluster) -> list[orchestrator_pb2.Worker]:
    return list((await _ask(cluster, "ListWorkers", orchestrator_pb2.ListWorkersRequest())).workers)


async def _fallbacks(cluster: FakeCluster) -> dict[str, int]:
    stats = await _ask(cluster, "Stats", orchestrator_pb2.StatsRequest())
    if stats.failed:
        raise BrokenStream(f"the orchestrator counts failed requests: {dict(stats.failed)}")
    return {reason: count for reason, count in stats.fallbacks.items() if count}


async def _ask(cluster: FakeCluster, method: str, request: Any) -> Any:
    async with aio_channel(cluster.orchestrator.address) as channel:
        return await getattr(orchestrator_pb2_grpc.OrchestratorServiceStub(channel), method)(request, timeout=10)


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
            near = [kill for kill in kills if before - _IN_FLIGHT <= kill[0] <= after]
            noticed.update(near)
            # two kills may be a moment apart: the one of the worker that was missed, nearest to the last token
            fitting = [kill for kill in near if reason.partition("_")[0] in kill[1]] or near
            if fitting:
                _, cause = min(fitting, key=lambda kill: abs(kill[0] - before))
                findings.recoveries[cause].append(after - before)
            else:
                findings.other[reason] += 1
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
    findings = Findings()
    try:
        asyncio.run(run(findings, args.rounds, args.streams, args.tokens, args.seed))
    except BaseException as error:
        findings.problem = f"{type(error).__name__}: {error}"
        raise
    finally:
        args.out.write_text(json.dumps(asdict(findings), indent=1))
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


if __name__ == "__main__":
    main()
