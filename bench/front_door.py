"""What the orchestrator costs a client: time to the first token and between rounds, through it and at the draft itself.

`python -m bench.front_door [--rounds N] [--streams N]`: one target, one draft and an orchestrator as processes over
the table engine; the same requests go both ways by turns, so that both see the same machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from pathlib import Path

from bench.fake_cluster import FakeCluster, Speed
from draftproof import AsyncClient

TOKENS = 64


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


async def measure(ways: dict[str, str], rounds: int, streams: int) -> dict[str, dict[str, list[float]]]:
    """Times per way."""
    found: dict[str, dict[str, list[float]]] = {name: {"first": [], "gap": []} for name in ways}
    clients = {name: AsyncClient(address) for name, address in ways.items()}
    for number in range(-3, rounds):
        for name, client in clients.items():
            done = await asyncio.gather(*(stream(client, 1000 * number + i + 10_000) for i in range(streams)))
            if number >= 0:
                found[name]["first"] += [first for first, _ in done]
                found[name]["gap"] += [gap for _, gaps in done for gap in gaps]
    for client in clients.values():
        await client.aclose()
    return found


def main() -> None:
    """Runs the benchmark and prints its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60, help="requests a way, per stream")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--out", type=Path, default=Path("bench-front-door.json"))
    args = parser.parse_args()
    rows = []
    with FakeCluster([Speed(0.005)], [Speed(0.0005, noise=0.1, slots=32)], own_target=True) as cluster:
        ways = {"draft": cluster.draft[0].address, "orchestrator": cluster.orchestrator.address}
        for streams in args.streams:
            rounds = max(8, args.rounds // streams)
            found = asyncio.run(measure(ways, rounds, streams))
            for what in ("first", "gap"):
                row: dict[str, float | str | int] = {"streams": streams, "what": what}
                for name in ways:
                    times = [1000 * t for t in found[name][what]]
                    row[f"{name} p50 ms"] = statistics.median(times)
                    row[f"{name} p95 ms"] = statistics.quantiles(times, n=20)[-1]
                row["cost p50 ms"] = float(row["orchestrator p50 ms"]) - float(row["draft p50 ms"])
                rows.append(row)
    print(
        f"{'streams':>8}{'time':>8}{'draft p50':>12}{'p95':>8}{'orchestrator p50':>18}{'p95':>8}{'cost p50':>10}  (ms)"
    )
    for row in rows:
        print(
            f"{row['streams']:>8}{row['what']:>8}{row['draft p50 ms']:>12.2f}{row['draft p95 ms']:>8.2f}"
            f"{row['orchestrator p50 ms']:>18.2f}{row['orchestrator p95 ms']:>8.2f}{row['cost p50 ms']:>10.2f}"
        )
    args.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
