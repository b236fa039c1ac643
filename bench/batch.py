"""Many streams through the whole stack: tokens a second of all together, waiting times, and whether speculation pays.

A cluster as `draftproof up` starts it answers 1 … 32 chat prompts at once, with speculation (γ control decides) and by
the target alone, in turns that alternate; each pair of neighbours gives one ratio. Every request has a prompt of its
own. TTFT is the time to the first token, ITL the time between tokens: the gap before a chunk over its tokens.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path

from bench.cluster import DRAFT_MODEL, chat, cluster
from bench.plot import Series, lines
from bench.prompts import KINDS, numbered
from bench.report import Row, Table, interval, parser, save
from draftproof import AsyncClient
from draftproof.cli.cluster import LocalCluster
from draftproof.testing.statistics import bootstrap_ratio_interval

NAME = "batch"
MARKS = (0.5, 0.95)


@dataclass(slots=True)
class Turn:
    """What one turn of all streams showed.

    Attributes:
        speed: tokens a second of all streams together, prompts included in the time.
        first: seconds to the first token, by stream.
        gaps: seconds between tokens.
    """

    speed: float = 0.0
    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    """What every stream asks for."""

    kind: str
    temperature: float
    tokens: int


async def turn(client: AsyncClient, load: Load, streams: int, numbers: count[int], gamma: int | None) -> Turn:
    """All streams once, at the same time."""
    found, total = Turn(), 0

    async def one(prompt: str) -> int:
        last, committed = time.perf_counter(), 0
        async with client.stream(
            **chat(prompt), temperature=load.temperature, max_tokens=load.tokens, gamma=gamma, ignore_eos=True
        ) as stream:
            async for chunk in stream:
                now = time.perf_counter()
                if committed:
                    found.gaps += [(now - last) / len(chunk.tokens)] * len(chunk.tokens)
                else:
                    found.first.append(now - last)
                committed += len(chunk.tokens)
                last = now
        stats = stream.completion.stats
        found.rounds += stats.rounds
        found.drafted += stats.drafted
        found.accepted += stats.accepted
        return committed

    begin = time.perf_counter()
    total = sum(await asyncio.gather(*(one(numbered(load.kind, next(numbers))) for _ in range(streams))))
    found.speed = total / (time.perf_counter() - begin)
    return found


async def measure(address: str, load: Load, loads: list[int], pairs: int) -> list[Row]:
    """Turns at every load, by pairs."""
    numbers, found = count(), {streams: list[tuple[Turn, Turn]]() for streams in loads}
    client = AsyncClient(address)
    try:
        for streams in {1, loads[-1]}:  # γ control finds its feet
            await turn(client, load, streams, numbers, None)
        for i in range(pairs):
            for streams in loads:
                order: tuple[int | None, ...] = (None, 0) if i % 2 == 0 else (0, None)
                turns = {gamma: await turn(client, load, streams, numbers, gamma) for gamma in order}
                found[streams].append((turns[None], turns[0]))
    finally:
        await client.aclose()
    return [row(streams, turns, found[loads[0]]) for streams, turns in found.items()]


def row(streams: int, turns: list[tuple[Turn, Turn]], least: list[tuple[Turn, Turn]]) -> Row:
    """Figures of one load; `least` are the turns of the smallest."""
    with_draft, alone = [a for a, _ in turns], [b for _, b in turns]
    drafted, rounds = sum(a.drafted for a in with_draft), sum(a.rounds for a in with_draft)
    scale = [(now.speed, before.speed) for (now, _), (before, _) in zip(turns, least, strict=True)]
    return {
        "streams": streams,
        "ratio": asdict(bootstrap_ratio_interval([(a.speed, b.speed) for a, b in turns])),
        "scale": asdict(bootstrap_ratio_interval(scale)),
        "gamma": drafted / rounds,
        "acceptance": sum(a.accepted for a in with_draft) / drafted if drafted else 0.0,
        "with_draft": figures(with_draft),
        "alone": figures(alone),
    }


def figures(turns: list[Turn]) -> Row:
    """Median speed, and quantiles over all streams and tokens, seconds."""
    return {
        "speed": statistics.median(one.speed for one in turns),
        "speeds": [one.speed for one in turns],
        "first": [quantile([x for one in turns for x in one.first], mark) for mark in MARKS],
        "gap": [quantile([x for one in turns for x in one.gaps], mark) for mark in MARKS],
    }


def quantile(values: list[float], mark: float) -> float:
    """The value below which that share of them lies."""
    return sorted(values)[min(len(values) - 1, int(mark * len(values)))]


COLUMNS = (
    "streams", "target only tok/s", "with draft tok/s", "speed-up (95 %)", "times one stream (95 %)", "γ", "accepted",
    "TTFT p50/p95 s", "target only", "ITL p50/p95 ms", "target only",
)  # fmt: skip


def cells(one: Row) -> list[str]:
    """A row of the table."""

    def both(values: list[float], scale: float, form: str) -> str:
        return " / ".join(f"{scale * value:{form}}" for value in values)

    return [
        str(one["streams"]),
        f"{one['alone']['speed']:.1f}",
        f"{one['with_draft']['speed']:.1f}",
        interval(one["ratio"]),
        interval(one["scale"], ".1f"),
        f"{one['gamma']:.1f}",
        f"{one['acceptance']:.2f}",
        both(one["with_draft"]["first"], 1, ".2f"),
        both(one["alone"]["first"], 1, ".2f"),
        both(one["with_draft"]["gap"], 1e3, ".0f"),
        both(one["alone"]["gap"], 1e3, ".0f"),
    ]


def page(found: list[Row]) -> str:
    """Its part of docs/benchmarks.md."""
    return Table(COLUMNS, [cells(one) for one in found]).markdown()


def draw(found: list[Row]) -> None:
    """Tokens a second of all streams over their number."""

    def series(label: str, name: str) -> Series:
        speeds = [one[name]["speeds"] for one in found]
        bounds = [(min(values), max(values)) for values in speeds]
        return Series(label, [one[name]["speed"] for one in found], bounds)

    lines(
        NAME,
        [one["streams"] for one in found],
        [series("with speculation", "with_draft"), series("target only", "alone")],
        title="All streams together (medians, and the range of the turns)",
        x_label="streams",
        y_label="tokens/s",
        x_log=True,
    )


def main() -> None:
    """Runs the benchmark and prints its table."""
    options = parser("bench.batch", __doc__, NAME)
    options.add_argument("--loads", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32], help="streams at once")
    options.add_argument("--pairs", type=int, default=5, help="of turns, for each load")
    options.add_argument("--tokens", type=int, default=48, help="of each answer")
    options.add_argument("--kind", choices=list(KINDS), default="chat")
    options.add_argument("--temperature", type=float, default=0.0)
    options.add_argument("--drafter", choices=("model", "ngram"), default="model")
    options.add_argument(
        "--draft-model", default=DRAFT_MODEL, help="name, folder, or cut-N: the target's first N layers"
    )
    options.add_argument("--dtype", help="auto, float32, bfloat16 or float16")
    args = options.parse_args()
    loads, pairs, tokens = ([1, 4], 1, 16) if args.quick else (args.loads, args.pairs, args.tokens)
    settings = LocalCluster(
        dtype=args.dtype,
        drafter=args.drafter,
        draft_model=args.draft_model if args.drafter == "model" else None,
        slots=max(loads),
        max_context=1024,
    )
    load = Load(args.kind, args.temperature, tokens)
    with tempfile.TemporaryDirectory() as folder, cluster(settings, Path(folder)) as running:
        rows = asyncio.run(measure(running.address, load, loads, pairs))
    found = save(rows, args, lambda one: one["streams"])
    print(Table(COLUMNS, [cells(one) for one in found]).text())
    if not args.quick:
        draw(found)


if __name__ == "__main__":
    main()
