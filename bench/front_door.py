"""What the orchestrator costs a client: time to the first token and between rounds, through it and at the draft itself.

`python -m bench.front_door [--rounds N] [--streams N]`: one target, one draft and an orchestrator as processes over
the table engine; the same requests go both ways by turns, so that both see the same machine. Each pair of runs gives
one difference.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.fake_cluster import FakeCluster, Speed
from draftproof import AsyncClient
from draftproof.testing.statistics import bootstrap_median_interval

TARGET = Speed(delay=0.005)
DRAFT = Speed(delay=0.0005, noise=0.1, slots=32)
TOKENS = 64
WARM_UP = 3


async def stream(client: AsyncClient, seed: int) -> tuple[float, list[float]]:
    """Seconds to the first chunk, and between chunks."""
    last, first, gaps = time.perf_counter(), 0.0, []
    async with client.stream("hello", seed=seed, max_tokens=TOKENS, ignore_eos=True) as chunks:
        async for _ in chunks:
            now = time.perf_counter()
            if first:
                gaps.append(now - last)
            else:
                first = now - last
            last = now
    return first, gaps


@dataclass(slots=True)
class Times:
    """Milliseconds of one way to the draft, by run: medians over its streams.

    Attributes:
        first: to the first token.
        gap: between rounds.
    """

    first: list[float] = field(default_factory=list)
    gap: list[float] = field(default_factory=list)


async def measure(ways: dict[str, str], rounds: int, streams: int) -> dict[str, Times]:
    """Times by way, run by run in turns; each pair of neighbours runs the same requests."""
    found = {name: Times() for name in ways}
    clients = {name: AsyncClient(address) for name, address in ways.items()}
    for number in range(-WARM_UP, rounds):
        for name, client in clients.items():
            done = await asyncio.gather(*(stream(client, 1000 * (number + WARM_UP) + i) for i in range(streams)))
            if number >= 0:
                found[name].first.append(1000 * statistics.median(first for first, _ in done))
                found[name].gap.append(1000 * statistics.median(gap for _, gaps in done for gap in gaps))
    for client in clients.values():
        await client.aclose()
    return found


def main() -> None:
    """Runs the benchmark and prints its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40, help="runs a way")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--out", type=Path, default=Path("bench-front-door.json"))
    args = parser.parse_args()
    rows = []
    print(f"{'streams':>8}{'time':>8}{'draft':>9}{'orchestrator':>14}{'cost':>8}{'95 %':>14}  (medians, ms)")
    with FakeCluster([TARGET], [DRAFT], own_target=True) as cluster:
        ways = {"draft": cluster.draft[0].address, "orchestrator": cluster.orchestrator.address}
        for streams in args.streams:
            found = asyncio.run(measure(ways, args.rounds, streams))
            for what in ("first", "gap"):
                direct, through = (getattr(found[name], what) for name in ("draft", "orchestrator"))
                cost = bootstrap_median_interval([b - a for a, b in zip(direct, through, strict=True)])
                print(
                    f"{streams:>8}{what:>8}{statistics.median(direct):>9.2f}{statistics.median(through):>14.2f}"
                    f"{cost.median:>8.2f}{f'{cost.low:.2f}–{cost.high:.2f}':>14}",
                    flush=True,
                )
                rows.append(
                    {"streams": streams, "what": what, "draft": direct, "orchestrator": through, "cost": asdict(cost)}
                )
    args.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
