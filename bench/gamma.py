"""γ control against fixed γ: what a useless draft costs, and how near a good one comes to the best fixed γ.

One target, one draft and an orchestrator run as processes over the table engine. A target pass sleeps 20 ms and 0.5 ms
for each token, a draft pass 2 ms; S times as long where other work shares the cores. After a warm-up the same load runs
by turns without a γ, so that the draft's control chooses, and with a fixed one. Speeds are committed tokens per second;
each pair of neighbours gives one ratio.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass

from bench.fake_cluster import FakeCluster, Speed
from bench.plot import Series, bars
from bench.report import Row, Table, interval, parser, save
from draftproof import AsyncClient
from draftproof.testing.statistics import bootstrap_ratio_interval

NAME = "gamma"
TARGET_DELAY, TOKEN_DELAY, DRAFT_DELAY = 0.02, 0.0005, 0.002
# low enough that unrelated tables hardly ever agree
TEMPERATURE = 0.3


@dataclass(frozen=True, slots=True)
class Case:
    """A draft, the fixed γ that its control is held against, and the least ratio that will do."""

    name: str
    noise: float
    fixed: tuple[int, ...]
    goal: float


CASES = (
    Case("garbage", 1.0, (0,), 0.95),
    Case("good", 0.15, (1, 2, 3, 4, 6, 8), 0.9),
)


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the load.

    Attributes:
        speed: committed tokens per second of all streams together.
        gamma: proposals examined per round.
        acceptance: share of them accepted.
    """

    speed: float
    gamma: float
    acceptance: float


async def run(client: AsyncClient, streams: int, tokens: int, gamma: int | None) -> Run:
    """All streams at once."""
    begun = time.perf_counter()
    done = await asyncio.gather(
        *(
            client.generate(
                chr(97 + i) + "hello", max_tokens=tokens, temperature=TEMPERATURE, gamma=gamma, ignore_eos=True
            )
            for i in range(streams)
        )
    )
    seconds = time.perf_counter() - begun
    stats = [completion.stats for completion in done]
    drafted = sum(s.drafted for s in stats)
    return Run(
        speed=sum(len(completion.token_ids) for completion in done) / seconds,
        gamma=drafted / sum(s.rounds for s in stats),
        acceptance=sum(s.accepted for s in stats) / drafted if drafted else 0.0,
    )


async def measure(
    address: str, case: Case, pairs: int, warm_up: int, streams: int, tokens: int
) -> dict[int, list[tuple[Run, Run]]]:
    """Pairs of an adaptive run and one at a fixed γ, by that γ."""
    found: dict[int, list[tuple[Run, Run]]] = {gamma: [] for gamma in case.fixed}
    client = AsyncClient(address)
    try:
        for _ in range(warm_up):
            await run(client, streams, tokens, None)
        for _ in range(pairs):
            for gamma in case.fixed:
                adaptive = await run(client, streams, tokens, None)
                found[gamma].append((adaptive, await run(client, streams, tokens, gamma)))
    finally:
        await client.aclose()
    return found


COLUMNS = (
    "draft", "fixed γ", "tok/s", "accepted", "adaptive tok/s", "mean γ", "accepted", "adaptive / fixed (95 %)", "floor",
)  # fmt: skip


def cells(row: Row) -> list[str]:
    """A row of the table."""
    adaptive, fixed = (_middle([pair[i] for pair in row["runs"]]) for i in (0, 1))
    return [
        row["draft"],
        str(row["gamma"]),
        f"{fixed['speed']:.0f}",
        f"{fixed['acceptance']:.2f}",
        f"{adaptive['speed']:.0f}",
        f"{adaptive['gamma']:.1f}",
        f"{adaptive['acceptance']:.2f}",
        interval(row, ".3f"),
        f"{row['goal']:g}",
    ]


def page(found: list[Row]) -> str:
    """Its part of docs/benchmarks.md."""
    return Table(COLUMNS, [cells(row) for row in found]).markdown()


def draw(found: list[Row]) -> None:
    """Adaptive over fixed, by the fixed γ."""
    names = [f"{row['draft']}\nγ = {row['gamma']}" for row in found]
    bounds = [(row["low"], row["high"]) for row in found]
    bars(
        NAME,
        names,
        [Series("adaptive / fixed", [row["median"] for row in found], bounds)],
        title="γ control against fixed γ: tokens/s, median and 95 % interval",
        y_label="times the fixed γ",
        marks=[1.0],
    )


def main() -> None:
    """Runs the benchmark and prints its table."""
    options = parser("bench.gamma", __doc__, NAME)
    options.add_argument("--pairs", type=int, default=9, help="of runs, for each fixed gamma")
    options.add_argument("--warm-up", type=int, default=6, help="adaptive runs that don't count")
    options.add_argument("--streams", type=int, default=4)
    options.add_argument("--tokens", type=int, default=128, help="of each stream")
    options.add_argument("--scale", type=float, default=1.0, help="factor on all sleeps")
    args = options.parse_args()
    load = (2, 2, args.streams, 48) if args.quick else (args.pairs, args.warm_up, args.streams, args.tokens)
    target = Speed(args.scale * TARGET_DELAY, args.scale * TOKEN_DELAY)
    rows = []
    for case in CASES:
        with FakeCluster([target], [Speed(args.scale * DRAFT_DELAY, noise=case.noise)]) as cluster:
            found = asyncio.run(measure(cluster.orchestrator.address, case, *load))
        for gamma, pairs in found.items():
            ratio = bootstrap_ratio_interval([(adaptive.speed, fixed.speed) for adaptive, fixed in pairs])
            runs = [[asdict(one) for one in pair] for pair in pairs]
            rows.append({"draft": case.name, "gamma": gamma, "goal": case.goal, **asdict(ratio), "runs": runs})
            print(Table(COLUMNS, [cells(rows[-1])]).text(), flush=True)
    kept = save(rows, args, lambda row: (row["draft"], row["gamma"]))
    print(f"\n{Table(COLUMNS, [cells(row) for row in kept]).text()}")
    if not args.quick:
        draw(kept)


def _middle(runs: list[Row]) -> Row:
    """The run of median speed."""
    return sorted(runs, key=lambda run: run["speed"])[len(runs) // 2]


if __name__ == "__main__":
    main()
