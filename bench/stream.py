"""One stream through the whole stack, with a draft and by the target alone.

A cluster as `draftproof up` starts it (client, orchestrator, draft and target are processes of their own) answers each
prompt twice, once with speculation and once with γ = 0, in turns that alternate; each pair of neighbours gives one
ratio of decoding speeds (tokens a second after the first chunk). What the formula gives is

    tokens a round / (1 + γ·c)      (Leviathan et al. 2023, theorem 3.8, with the rounds that were run)

with c = a draft step over a target pass of one token, both the models' own compute as the workers count it. It takes a
pass over γ + 1 tokens to cost what a pass over one does; "with the pass as measured" takes what it cost.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.cluster import DRAFT_MODEL, Running, chat, cluster, difference
from bench.plot import Series, bars
from bench.prompts import KINDS
from bench.report import Row, Table, interval, parser, save
from draftproof.cli.cluster import LocalCluster
from draftproof.client import Client, Stats
from draftproof.testing.statistics import bootstrap_ratio_interval

NAME = "stream"
DRAFT_SECONDS, DRAFT_STEPS = "draftproof_draft_forward_seconds_total", "draftproof_draft_step_blocks_count"
TARGET_SECONDS = "draftproof_forward_seconds_sum"


@dataclass(frozen=True, slots=True)
class Case:
    """A drafter, a kind of prompt and a temperature.

    Attributes:
        floor: least ratio that will do; None: none is asked for.
    """

    drafter: str
    kind: str
    temperature: float
    floor: float | None = None


CASES = (
    Case("model", "chat", 0.0, 1.3),
    Case("model", "chat", 0.7),
    Case("model", "chat", 1.0, 1.15),
    Case("model", "code", 0.0),
    Case("model", "code", 0.7),
    Case("model", "code", 1.0),
    Case("hybrid", "chat", 0.0, 1.3),
    Case("hybrid", "chat", 0.7),
    Case("hybrid", "chat", 1.0, 1.15),
    Case("hybrid", "summarise", 0.0, 2.0),
    Case("ngram", "summarise", 0.0, 2.0),
    Case("ngram", "summarise", 0.7),
    Case("ngram", "summarise", 1.0),
    Case("garbage", "chat", 0.0, 0.95),
    Case("garbage", "chat", 1.0, 0.95),
)


@dataclass(frozen=True, slots=True)
class Shot:
    """One answer.

    Attributes:
        tokens: after the first chunk.
        seconds: from the first chunk to the end.
        first: seconds to the first chunk.
        draft, draft_steps, target: compute of both models, seconds, and steps of the draft.
    """

    tokens: int
    seconds: float
    first: float
    rounds: int
    drafted: int
    accepted: int
    accepted_per_position: tuple[int, ...]
    drafted_per_position: tuple[int, ...]
    draft: float
    draft_steps: float
    target: float

    @property
    def speed(self) -> float:
        """Tokens a second, decoding."""
        return self.tokens / self.seconds


def shoot(running: Running, client: Client, prompt: str, temperature: float, tokens: int, gamma: int | None) -> Shot:
    """Streams one answer."""
    before = running.read()
    begin = time.perf_counter()
    arrivals: list[tuple[float, int]] = []
    with client.stream(**chat(prompt), temperature=temperature, max_tokens=tokens, gamma=gamma) as stream:
        for chunk in stream:
            arrivals.append((time.perf_counter(), len(chunk.tokens)))
        stats: Stats = stream.completion.stats
    after = running.read()
    first, last = arrivals[0][0], arrivals[-1][0]
    return Shot(
        tokens=sum(count for _, count in arrivals[1:]),
        seconds=last - first,
        first=first - begin,
        rounds=stats.rounds,
        drafted=stats.drafted,
        accepted=stats.accepted,
        accepted_per_position=stats.accepted_per_position,
        drafted_per_position=stats.drafted_per_position,
        draft=difference(before, after, DRAFT_SECONDS),
        draft_steps=difference(before, after, DRAFT_STEPS),
        target=difference(before, after, TARGET_SECONDS),
    )


def measure(running: Running, client: Client, case: Case, pairs: int, tokens: int) -> Row:
    """Pairs of answers with and without speculation, and what the formula says about them."""
    prompts = KINDS[case.kind]
    found: list[tuple[Shot, Shot]] = []
    read: list[Shot] = []
    for _ in range(2):  # γ control finds its feet
        shoot(running, client, prompts[-1], case.temperature, tokens, None)
    for i in range(pairs):
        prompt = prompts[i % (len(prompts) - 1)]
        # reads the prompt, so that both find its KV and neither model's compute of decoding contains it
        read.append(shoot(running, client, prompt, case.temperature, 2, 1))
        turn = (None, 0) if i % 2 == 0 else (0, None)
        shots = {gamma: shoot(running, client, prompt, case.temperature, tokens, gamma) for gamma in turn}
        found.append((shots[None], shots[0]))
    with_draft, alone = [a for a, _ in found], [b for _, b in found]
    rounds, drafted = sum(a.rounds for a in with_draft), sum(a.drafted for a in with_draft)
    steps = sum(a.draft_steps for a in with_draft) - sum(r.draft_steps for r in read)
    step = max(0.0, sum(a.draft for a in with_draft) - sum(r.draft for r in read)) / steps if steps > 0 else 0.0
    one = sum(b.target for b in alone) / sum(b.rounds for b in alone)
    several = sum(a.target for a in with_draft) / rounds
    per_round = sum(a.tokens for a in with_draft) / (rounds - len(found))
    gamma = drafted / rounds
    formula = per_round / (1 + gamma * step / one)
    as_measured = per_round * one / (gamma * step + several)
    ratio = bootstrap_ratio_interval([(a.speed, b.speed) for a, b in found])
    return {
        **asdict(case),
        "ratio": asdict(ratio),
        "tokens_per_second": statistics.median(a.speed for a in with_draft),
        "alone_tokens_per_second": statistics.median(b.speed for b in alone),
        "gamma": gamma,
        "acceptance": sum(a.accepted for a in with_draft) / drafted if drafted else 0.0,
        "tokens_per_round": per_round,
        "draft_step_ms": 1e3 * step,
        "target_pass_ms": 1e3 * one,
        "verify_pass_ms": 1e3 * several,
        "formula": formula,
        "formula_as_measured": as_measured,
        "pairs": [[asdict(a), asdict(b)] for a, b in found],
    }


COLUMNS = (
    "prompts, drafter, T", "target only tok/s", "with draft tok/s", "speed-up (95 %)", "floor", "γ", "accepted",
    "tokens/round", "draft step ms", "pass ms", "verify ms", "formula", "share", "with the pass as measured", "share",
)  # fmt: skip


def cells(row: Row) -> list[str]:
    """A row of the table."""
    ratio = row["ratio"]["median"]
    return [
        f"{row['kind']}, {row['drafter']}, {row['temperature']:g}",
        f"{row['alone_tokens_per_second']:.1f}",
        f"{row['tokens_per_second']:.1f}",
        interval(row["ratio"]),
        "" if row["floor"] is None else f"{row['floor']:g}",
        f"{row['gamma']:.1f}",
        f"{row['acceptance']:.2f}",
        f"{row['tokens_per_round']:.2f}",
        f"{row['draft_step_ms']:.1f}",
        f"{row['target_pass_ms']:.1f}",
        f"{row['verify_pass_ms']:.1f}",
        f"{row['formula']:.2f}",
        f"{ratio / row['formula']:.0%}",
        f"{row['formula_as_measured']:.2f}",
        f"{ratio / row['formula_as_measured']:.0%}",
    ]


def page(found: list[Row]) -> str:
    """Its part of docs/benchmarks.md."""
    return Table(COLUMNS, [cells(row) for row in found]).markdown()


def draw(found: list[Row]) -> None:
    """Speed-ups by prompts, drafter and temperature."""
    groups = list(dict.fromkeys(f"{row['kind']}\n{row['drafter']}" for row in found))

    def at(temperature: float, value: str) -> list[Row | None]:
        rows = {f"{row['kind']}\n{row['drafter']}": row for row in found if row["temperature"] == temperature}
        return [rows[group][value] if group in rows else None for group in groups]

    bars(
        NAME,
        groups,
        [
            Series(
                f"T = {temperature:g}",
                [ratio and ratio["median"] for ratio in at(temperature, "ratio")],
                [ratio and (ratio["low"], ratio["high"]) for ratio in at(temperature, "ratio")],
            )
            for temperature in sorted({row["temperature"] for row in found})
        ],
        title="One stream: speed-up over the target alone, median and 95 % interval",
        y_label="times the target alone",
        marks=[1.0],
    )


def main() -> None:
    """Runs the benchmark and prints its table."""
    options = parser("bench.stream", __doc__, NAME)
    options.add_argument("--pairs", type=int, default=7, help="of answers, for each row")
    options.add_argument("--tokens", type=int, default=96, help="most of an answer")
    options.add_argument("--drafters", nargs="+", default=["model", "hybrid", "ngram", "garbage"])
    options.add_argument("--kinds", nargs="+", default=list(KINDS))
    options.add_argument("--temperatures", nargs="+", type=float, default=[0.0, 0.7, 1.0])
    options.add_argument(
        "--draft-model", default=DRAFT_MODEL, help="name, folder, or cut-N: the target's first N layers"
    )
    options.add_argument("--dtype", help="auto, float32, bfloat16 or float16")
    args = options.parse_args()
    pairs, tokens = (2, 32) if args.quick else (args.pairs, args.tokens)
    rows = []
    for drafter in args.drafters:
        cases = [
            c for c in CASES if c.drafter == drafter and c.kind in args.kinds and c.temperature in args.temperatures
        ]
        if not cases:
            continue
        settings = LocalCluster(
            dtype=args.dtype,
            drafter="model" if drafter == "garbage" else drafter,
            draft_model={"ngram": None, "garbage": "garbage"}.get(drafter, args.draft_model),
        )
        with (
            tempfile.TemporaryDirectory() as folder,
            cluster(settings, Path(folder)) as running,
            Client(running.address) as client,
        ):
            for case in cases:
                rows.append(measure(running, client, case, pairs, tokens))
                print(Table(COLUMNS, [cells(rows[-1])]).text(), flush=True)
    found = save(rows, args, lambda row: (row["kind"], row["drafter"], row["temperature"]))
    print(f"\n{Table(COLUMNS, [cells(row) for row in found]).text()}")
    if not args.quick:
        draw(found)


if __name__ == "__main__":
    main()
