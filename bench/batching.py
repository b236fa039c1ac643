"""How well streams share passes: tokens per second of 1, 4 and 16 streams, by the target alone and with a draft.

`python -m bench.batching [--streams N…] [--rounds N]`: one target and one draft as processes over the table engine. A
target pass sleeps 40 ms and 1 ms for each token, a draft pass 3 ms, as a small model on CPUs does. Every number of
streams runs by turns at the target itself and at the draft, so that both see the same machine. Rows a pass are the
target's own count; streams that share every pass have as many rows as there are streams.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from bench.fake_cluster import FakeCluster, Speed
from draftproof import AsyncClient
from draftproof.testing.statistics import bootstrap_ratio_interval

TEMPERATURE = 0.3
GAMMA = 4


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the load.

    Attributes:
        speed: committed tokens per second of all streams together.
        rows: rows of the target's passes, on average.
    """

    speed: float
    rows: float


async def run(client: AsyncClient, port: int, streams: int, tokens: int) -> Run:
    """All streams at once."""
    passes, rows = _passes(port)
    begun = time.perf_counter()
    done = await asyncio.gather(
        *(
            client.generate(chr(97 + i) + "hello", max_tokens=tokens, temperature=TEMPERATURE, ignore_eos=True)
            for i in range(streams)
        )
    )
    seconds = time.perf_counter() - begun
    more_passes, more_rows = _passes(port)
    committed = sum(len(completion.token_ids) for completion in done)
    return Run(committed / seconds, (more_rows - rows) / (more_passes - passes))


async def measure(
    ways: dict[str, str], port: int, counts: list[int], rounds: int, tokens: int
) -> dict[int, dict[str, list[Run]]]:
    """Runs by number of streams and way, in turns."""
    found: dict[int, dict[str, list[Run]]] = {count: {way: [] for way in ways} for count in counts}
    clients = {way: AsyncClient(address) for way, address in ways.items()}
    try:
        for number in range(-1, rounds):
            for count in counts:
                for way, client in clients.items():
                    one = await run(client, port, count, tokens)
                    if number >= 0:
                        found[count][way].append(one)
    finally:
        for client in clients.values():
            await client.aclose()
    return found


def main() -> None:
    """Runs the benchmark and prints its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--rounds", type=int, default=5, help="runs for each number of streams and way")
    parser.add_argument("--tokens", type=int, default=48, help="of each stream")
    parser.add_argument("--delay", type=float, default=0.04, help="seconds of a target pass")
    parser.add_argument("--token-delay", type=float, default=0.001, help="seconds more for each token it is fed")
    parser.add_argument("--draft-delay", type=float, default=0.003, help="seconds of a draft pass")
    parser.add_argument("--noise", type=float, default=0.15, help="of the draft: 0 is the target itself, 1 garbage")
    parser.add_argument("--out", type=Path, default=Path("bench-batching.json"))
    args = parser.parse_args()
    most = max(args.streams)
    target, draft = Speed(args.delay, args.token_delay, slots=most), Speed(args.draft_delay, 0, args.noise, slots=most)
    with FakeCluster([target], [draft], own_target=True, gamma=GAMMA) as cluster:
        ways = {"target": cluster.target[0].address, "draft": cluster.draft[0].address}
        measured = measure(ways, cluster.target[0].metrics_port, args.streams, args.rounds, args.tokens)
        found = asyncio.run(measured)
    alone = {way: statistics.median(one.speed for one in runs) for way, runs in found[args.streams[0]].items()}
    print(f"{'streams':>8}{'':>10}{'tokens/s':>10}{'× one':>8}{'rows a pass':>13}{'draft / target':>16}{'95 %':>15}")
    rows = []
    for count, ways_found in found.items():
        pairs = zip(ways_found["draft"], ways_found["target"], strict=True)
        ratio = bootstrap_ratio_interval([(draft.speed, target.speed) for draft, target in pairs])
        for way, runs in ways_found.items():
            speed, width = (statistics.median(getattr(one, what) for one in runs) for what in ("speed", "rows"))
            versus = f"{ratio.median:>16.2f}{f'{ratio.low:.2f}–{ratio.high:.2f}':>15}" if way == "draft" else ""
            print(f"{count:>8}{way:>10}{speed:>10.0f}{speed / alone[way]:>8.2f}{width:>13.2f}{versus}")
            rows.append({"streams": count, "way": way, "runs": [asdict(one) for one in runs]})
    args.out.write_text(json.dumps(rows, indent=1))


def _passes(port: int) -> tuple[float, float]:
    """Passes so far, and their rows."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
        families = list(text_string_to_metric_families(reply.read().decode()))
    samples = {sample.name: sample.value for family in families for sample in family.samples}
    return samples["draftproof_forward_rows_count"], samples["draftproof_forward_rows_sum"]


if __name__ == "__main__":
    main()
