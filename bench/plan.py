"""What `draftproof plan` forecasts against what a cluster then does, on ten settings.

Costs and acceptance are measured once on a small cluster, as `draftproof plan --measure` does: one stream and four,
with and without proposals. From them come forecasts for more streams, other γ, a longer link (a relay that delays),
and more workers; each is then run. Most settings are processes over the table engine, whose passes sleep as long as
told, so that several workers fit this machine without sharing cores; the last ones run the embedded model and a draft
of it.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.cluster import DRAFT_MODEL, chat, cluster
from bench.fake_cluster import FakeCluster, Speed
from bench.plot import Series, bars
from bench.prompts import CHAT
from bench.report import Row, Table, parser, save
from draftproof import AsyncClient
from draftproof.cli.cluster import LocalCluster
from draftproof.cli.measure import measure
from draftproof.cli.plan import costs_of
from draftproof.planning.forecast import forecast
from draftproof.planning.setup import Encoding, Link, Setup
from draftproof.planning.simulation import simulate

NAME = "plan"
TEMPERATURE = 0.3
TEXTS = tuple(f"{chr(97 + i)}hello" for i in range(26))
AS_MEASURED = Encoding("as measured", 250.0, 0.0)
"""Whose loss is in the acceptance already."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A load.

    Attributes:
        rtt: seconds that the link to the target takes beyond the one that was measured.
        mbit: its bandwidth, Mbit/s; 0: no limit.
    """

    streams: int
    gamma: int
    rtt: float = 0.0
    mbit: float = 0.0
    targets: int = 1
    drafts: int = 1


@dataclass(frozen=True, slots=True)
class Kind:
    """Workers, and the settings that are forecast from one measurement of them."""

    name: str
    target: Speed
    draft: Speed
    settings: tuple[Setting, ...]


KINDS = (
    Kind(
        "quick draft",
        Speed(delay=0.04, token_delay=0.0005, slots=32),
        Speed(delay=0.003, noise=0.15, slots=32),
        (
            Setting(1, 4),
            Setting(8, 3),
            Setting(1, 6, rtt=0.04),
            Setting(8, 4, rtt=0.04, mbit=20),
            Setting(8, 3, targets=2),
        ),
    ),
    Kind(
        "slow draft",
        Speed(delay=0.02, token_delay=0.001, slots=32),
        Speed(delay=0.01, token_delay=0.001, noise=0.15, slots=32),
        (Setting(1, 2), Setting(6, 4), Setting(12, 2)),
    ),
)
REAL = (Setting(1, 3), Setting(4, 2))


@dataclass(slots=True)
class Relays:
    """Relays in front of targets, ended with the block."""

    rtt: float
    mbit: float
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    def reach(self, address: str) -> str:
        """Starts one; returns its address."""
        if not self.rtt and not self.mbit:
            return address
        words = ["--rtt", str(self.rtt), "--mbit", str(self.mbit)]
        command = [sys.executable, "-m", "bench.proxy", address, *words]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.running.append(process)
        assert process.stdout is not None
        return process.stdout.readline().strip()


@contextmanager
def relays(rtt: float, mbit: float) -> Iterator[Relays]:
    """Relays for one cluster."""
    found = Relays(rtt, mbit)
    try:
        yield found
    finally:
        for process in found.running:
            process.terminate()
            process.wait()


async def run(address: str, setting: Setting, prompts: Sequence[dict[str, Any]], tokens: int, turns: int) -> Row:
    """Tokens a second of all streams, from the time when all have begun until the first ends; median of the turns."""
    client = AsyncClient(address)
    speeds, rounds, drafted, accepted = [], 0, 0, 0

    async def one(prompt: dict[str, Any], arrivals: list[tuple[float, int]]) -> Any:
        async with client.stream(**prompt, max_tokens=tokens, gamma=setting.gamma, ignore_eos=True) as stream:
            async for chunk in stream:
                arrivals.append((time.perf_counter(), len(chunk.tokens)))
        return stream.completion.stats

    try:
        for turn in range(turns + 1):
            arrivals: list[list[tuple[float, int]]] = [[] for _ in range(setting.streams)]
            mine = (prompts[(turn * setting.streams + i) % len(prompts)] for i in range(setting.streams))
            done = await asyncio.gather(*(one(prompt, a) for prompt, a in zip(mine, arrivals, strict=True)))
            if not turn:
                continue  # whatever is built on first use
            begin, end = max(a[0][0] for a in arrivals), min(a[-1][0] for a in arrivals)
            speeds.append(sum(n for a in arrivals for moment, n in a if begin < moment <= end) / (end - begin))
            rounds += sum(stats.rounds for stats in done)
            drafted += sum(stats.drafted for stats in done)
            accepted += sum(stats.accepted for stats in done)
    finally:
        await client.aclose()
    return {
        "speed": statistics.median(speeds),
        "speeds": speeds,
        "tokens_per_round": (accepted + rounds) / rounds,
        "acceptance": accepted / drafted if drafted else 0.0,
    }


def compare(name: str, setting: Setting, known: dict[str, Any], found: Row) -> Row:
    """A row: the forecast, what a simulation says, and what was seen."""
    setup = Setup(
        costs=costs_of(known),
        link=Link(rtt=setting.rtt, **({"bandwidth": 1e6 * setting.mbit} if setting.mbit else {})),
        acceptance=tuple(known["acceptance"]),
        gamma=setting.gamma,
        streams=setting.streams,
        targets=setting.targets,
        drafts=setting.drafts,
        encoding=AS_MEASURED,
    )
    expected, simulated = forecast(setup), simulate(setup, rounds=200)
    return {
        "workers": name,
        "streams": setting.streams,
        "gamma": setting.gamma,
        "targets": setting.targets,
        "drafts": setting.drafts,
        "rtt": setting.rtt,
        "mbit": setting.mbit,
        "costs": known,
        "forecast": expected.tokens_per_second,
        "forecast_tokens_per_round": expected.tokens_per_round,
        "limit": expected.limit,
        "simulated": simulated.tokens_per_second,
        "error": expected.tokens_per_second / found["speed"] - 1,
        **found,
    }


COLUMNS = (
    "workers", "streams", "γ", "targets/drafts", "RTT ms", "Mbit/s", "seen tok/s", "forecast", "error", "simulation",
    "tokens/round", "forecast", "limit",
)  # fmt: skip


def cells(row: Row) -> list[str]:
    """A row of the table."""
    return [
        row["workers"],
        str(row["streams"]),
        str(row["gamma"]),
        f"{row['targets']}/{row['drafts']}",
        f"{1e3 * row['rtt']:g}",
        f"{row['mbit']:g}" if row["mbit"] else "",
        f"{row['speed']:.1f}",
        f"{row['forecast']:.1f}",
        f"{row['error']:+.0%}",
        f"{row['simulated']:.1f}",
        f"{row['tokens_per_round']:.2f}",
        f"{row['forecast_tokens_per_round']:.2f}",
        row["limit"],
    ]


def summary(found: list[Row]) -> str:
    """Errors in one line."""
    errors = [abs(row["error"]) for row in found]
    return f"{len(errors)} settings, error {statistics.median(errors):.1%} in the median, {max(errors):.1%} at worst"


def page(found: list[Row]) -> str:
    """Its part of docs/benchmarks.md."""
    return f"{Table(COLUMNS, [cells(row) for row in found]).markdown()}\n\n{summary(found)}."


def draw(found: list[Row]) -> None:
    """Forecasts beside what was seen, each over the latter."""
    names = [f"{row['workers'].split()[0]}\n{row['streams']} str.\nγ {row['gamma']}" for row in found]
    bars(
        NAME,
        names,
        [
            Series("forecast", [row["forecast"] / row["speed"] for row in found]),
            Series("simulation", [row["simulated"] / row["speed"] for row in found]),
        ],
        title="Forecast tokens/s over those seen",
        y_label="1 is exact",
        marks=[1.0, 0.7, 1.3],
    )


def fake(kind: Kind, tokens: int, turns: int, say: Callable[[Row], None]) -> None:
    """Measures one kind of workers and runs its settings."""
    prompts = [{"prompt": text, "temperature": TEMPERATURE} for text in TEXTS]
    known: dict[str, Any] = {}
    shapes = dict.fromkeys((s.rtt, s.mbit, s.targets, s.drafts) for s in kind.settings)
    for rtt, mbit, targets, drafts in shapes:
        with relays(rtt, mbit) as link:
            fleet = FakeCluster([kind.target] * targets, [kind.draft] * drafts, ("--no-adaptive",), reach=link.reach)
            with fleet as running:
                address = running.orchestrator.address
                known = known or measure(address, TEMPERATURE, TEXTS, ignore_eos=True)
                for setting in kind.settings:
                    if (setting.rtt, setting.mbit, setting.targets, setting.drafts) == (rtt, mbit, targets, drafts):
                        say(
                            compare(
                                kind.name, setting, known, asyncio.run(run(address, setting, prompts, tokens, turns))
                            )
                        )


def real(draft_model: str, tokens: int, turns: int, say: Callable[[Row], None]) -> None:
    """The embedded model and a draft of it."""
    prompts = [{**chat(text), "temperature": 0.0} for text in CHAT]
    settings = LocalCluster(drafter="model", draft_model=draft_model, max_context=1024)
    with tempfile.TemporaryDirectory() as folder, cluster(settings, Path(folder)) as running:
        known = measure(running.address, 0.0, CHAT, ignore_eos=True)
        # workers get their share of the cores each, unless there are fewer cores than workers
        known["shared"] = (os.cpu_count() or 1) < 2
        for setting in REAL:
            say(compare("real", setting, known, asyncio.run(run(running.address, setting, prompts, tokens, turns))))


def main() -> None:
    """Runs the benchmark and prints its table."""
    options = parser("bench.plan", __doc__, NAME)
    options.add_argument("--tokens", type=int, default=96, help="of each stream")
    options.add_argument("--turns", type=int, default=3, help="of all streams, for each setting")
    options.add_argument(
        "--draft-model", default=DRAFT_MODEL, help="name, folder, or cut-N: the target's first N layers"
    )
    options.add_argument("--kinds", nargs="+", default=[*(kind.name.split()[0] for kind in KINDS), "real"])
    args = options.parse_args()
    tokens, turns = (48, 1) if args.quick else (args.tokens, args.turns)
    rows: list[Row] = []

    def say(row: Row) -> None:
        rows.append(row)
        print(Table(COLUMNS, [cells(row)]).text(), flush=True)

    for kind in KINDS:
        if kind.name.split()[0] in args.kinds:
            fake(kind, tokens, turns, say)
    if "real" in args.kinds:
        real(args.draft_model, tokens, turns, say)
    key = ("workers", "streams", "gamma", "targets", "drafts", "rtt", "mbit")
    found = save(rows, args, lambda row: tuple(row[name] for name in key))
    print(f"\n{Table(COLUMNS, [cells(row) for row in found]).text()}\n{summary(found)}")
    if not args.quick:
        draw(found)


if __name__ == "__main__":
    main()
