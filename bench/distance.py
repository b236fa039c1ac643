"""One stream whose draft and target are far apart: round trips, bandwidths, with and without drafting ahead.

A target, and one draft for each way of drafting, are processes of their own; between them lies `bench.proxy`, one link
for every round trip and bandwidth. The client sits with the draft. Engines are tables that sleep: a pass of the target
takes 30 ms and 0.5 ms a token, a step of the draft 3 ms, so that two models don't fight for this machine's cores.

For each round trip γ is what the draft's own control came to rest at over the widest link; then seeded requests of that
γ run by turns over all bandwidths, with and without drafting ahead. A seed fixes the text, so that each pair did the
same rounds and its ratio is one of times alone. What can be had at best is

    tokens a round / max(round trip + verification, drafting)

where a rejection costs its round trip and everything else is hidden: tokens a round and verification (queue, pass and
draws on the target) as measured, the round trip as set, drafting γ steps.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.fake_cluster import Process, Speed, worker
from bench.plot import Series, lines
from bench.proxy import Relays
from bench.report import Row, Table, interval, parser, save
from draftproof.rpc.channel import channel
from draftproof.testing.statistics import bootstrap_median_interval, bootstrap_ratio_interval
from draftproof.v1 import draft_pb2, draft_pb2_grpc, generation_pb2, sampling_pb2, verdict_pb2

NAME = "distance"
TARGET_PASS, TARGET_TOKEN = 0.03, 0.0005
STEP = 0.003
WAYS = {"without": ("--no-ahead",), "ahead": ("--ahead",), "auto": ()}
SETTLE_TOKENS = 160


@dataclass(frozen=True, slots=True)
class Load:
    """Engines and settings of a request.

    Attributes:
        vocabulary, spread, noise: of the tables; see `TableEngine`.
    """

    vocabulary: int
    spread: float
    noise: float
    temperature: float


LOADS = {
    # q is one-hot: a dozen bytes a proposal
    "greedy": Load(27, 1.5, 0.06, 0.0),
    # some 260 bytes a proposal
    "sampled": Load(1024, 15.0, 0.03, 1.0),
}


@dataclass(frozen=True, slots=True)
class Run:
    """One answer after its first round.

    Attributes:
        seconds: of its rounds.
        drafting: seconds of a round that went by with drafting.
        verify: seconds of a round on the target.
        proposal_bytes: of a proposal on the wire.
    """

    tokens: int
    rounds: int
    seconds: float
    gamma: float
    acceptance: float
    drafting: float
    verify: float
    proposal_bytes: float

    @property
    def speed(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds

    def bound(self, rtt: float) -> float:
        """Tokens a second where all but the round trip is hidden."""
        return self.tokens / self.rounds / max(rtt + self.verify, self.gamma * STEP)


def run(draft: Process, target: str, load: Load, tokens: int, seed: int, gamma: int | None) -> Run:
    """Streams one answer over the link at `target`; without γ nothing is seeded."""
    sampling = sampling_pb2.SamplingParams(temperature=load.temperature, max_tokens=tokens, ignore_eos=True)
    if gamma is not None:
        sampling.gamma, sampling.seed = gamma, seed
    prompt = generation_pb2.TokenIds(ids=[seed % 26, 7, 4, 11, 11, 14])
    request = generation_pb2.GenerateRequest(token_ids=prompt, sampling=sampling)
    times: list[float] = []
    chunks: list[generation_pb2.Chunk] = []
    with channel(draft.address) as line:
        for response in draft_pb2_grpc.DraftServiceStub(line).Draft(
            draft_pb2.DraftRequest(generation=request, target=target), timeout=120
        ):
            event = response.event
            if event.HasField("chunk"):
                times.append(time.perf_counter())
                chunks.append(event.chunk)
            elif event.HasField("finished"):
                stats: verdict_pb2.SpeculationStats = event.finished.stats
    spent = stats.time
    drafted = sum(chunk.examined for chunk in chunks[1:-1])
    return Run(
        tokens=sum(len(chunk.tokens) for chunk in chunks[1:-1]),
        rounds=len(chunks) - 2,
        seconds=times[-2] - times[0],
        gamma=drafted / (len(chunks) - 2),
        acceptance=sum(chunk.accepted for chunk in chunks[1:-1]) / drafted if drafted else 0.0,
        drafting=spent.draft_ns / stats.rounds / 1e9,
        verify=(spent.queue_ns + spent.forward_ns + spent.verify_ns) / stats.rounds / 1e9,
        proposal_bytes=stats.proposal_bytes / max(1, stats.drafted),
    )


@dataclass(slots=True)
class Laboratory:
    """A target, a draft for each way, and links between them."""

    target: Process
    drafts: dict[str, Process]
    relays: Relays

    def link(self, rtt: float, mbit: float) -> str:
        """Address of the target's far end."""
        return self.relays.to(self.target.address, rtt, mbit)


@contextmanager
def laboratory(load: Load, ways: Sequence[str], encoding: str) -> Iterator[Laboratory]:
    """Everything that runs, until the block ends."""
    started: list[Process] = []

    def start(name: str, role: str, speed: Speed, *more: str) -> Process:
        process = Process(name, worker(role, speed, *more), Path(folder) / f"{name}.log")
        started.append(process)
        process.start()
        return process

    table = {"vocabulary": load.vocabulary, "spread": load.spread}
    with tempfile.TemporaryDirectory() as folder, Relays() as relays:
        try:
            target = start("target", "target", Speed(TARGET_PASS, TARGET_TOKEN, **table))
            speed = Speed(STEP, noise=load.noise, **table)
            drafts = {way: start(way, "draft", speed, "--q-encoding", encoding, *WAYS[way]) for way in ways}
            for process in started:
                process.wait()
            yield Laboratory(target, drafts, relays)
        finally:
            for process in started:
                process.kill()


def settled(lab: Laboratory, link: str, load: Load) -> int:
    """γ that control comes to rest at over a link, as the draft that works ahead sees it."""
    draft = lab.drafts.get("ahead") or next(iter(lab.drafts.values()))
    for seed in range(2):
        found = run(draft, link, load, SETTLE_TOKENS, seed, None)
    return round(found.gamma)


def measure(
    lab: Laboratory, name: str, rtts: Sequence[float], mbits: Sequence[float], pairs: int, tokens: int
) -> Iterator[Row]:
    """Rows of one load: every round trip and bandwidth."""
    load, ways = LOADS[name], list(lab.drafts)
    for rtt in rtts:
        links = {mbit: lab.link(rtt, mbit) for mbit in mbits}
        gamma = settled(lab, links[max(mbits)], load)
        found: dict[tuple[float, str], list[Run]] = {(mbit, way): [] for mbit in mbits for way in ways}
        for mbit in mbits:
            for way in ways:
                # connects, and lets the draft that decides for itself decide
                run(lab.drafts[way], links[mbit], load, SETTLE_TOKENS if way == "auto" else 16, 0, gamma)
        for seed in range(1, pairs + 1):
            order = list(found) if seed % 2 else list(found)[::-1]
            for mbit, way in order:
                found[mbit, way].append(run(lab.drafts[way], links[mbit], load, tokens, seed, gamma))
        for mbit in mbits:
            yield row(name, rtt, mbit, gamma, found, max(mbits))


def row(
    name: str, rtt: float, mbit: float, gamma: int, found: dict[tuple[float, str], list[Run]], widest: float
) -> Row:
    """What was found at one round trip and bandwidth."""
    by_way = {way: runs for (m, way), runs in found.items() if m == mbit}
    best = "ahead" if "ahead" in by_way else list(by_way)[-1]
    runs, plain = by_way[best], by_way.get("without", by_way[best])
    return {
        "load": name,
        "rtt_ms": 1e3 * rtt,
        "mbit": mbit,
        "gamma": gamma,
        "acceptance": sum(r.acceptance for r in runs) / len(runs),
        "tokens_per_round": sum(r.tokens for r in runs) / sum(r.rounds for r in runs),
        "verify_ms": 1e3 * statistics.median(r.verify for r in runs),
        "proposal_bytes": statistics.median(r.proposal_bytes for r in runs),
        "hidden": 1 - sum(r.drafting for r in runs) / max(1e-9, sum(r.drafting for r in plain)),
        "speeds": {way: statistics.median(r.speed for r in runs) for way, runs in by_way.items()},
        "gains": {
            way: asdict(bootstrap_ratio_interval([(a.speed, b.speed) for a, b in zip(runs, plain, strict=True)]))
            for way, runs in by_way.items()
            if way != "without"
        },
        "share_of_bound": {
            way: asdict(bootstrap_median_interval([r.speed / r.bound(rtt) for r in runs]))
            for way, runs in by_way.items()
        },
        "of_widest": asdict(
            bootstrap_ratio_interval(
                [(a.speed, b.speed) for a, b in zip(found[mbit, best], found[widest, best], strict=True)]
            )
        ),
        "runs": {way: [asdict(r) for r in runs] for way, runs in by_way.items()},
    }


COLUMNS = (
    "draft's q, RTT, Mbit/s", "γ", "accepted", "tokens/round", "verify ms", "bytes a proposal", "without tok/s",
    "ahead tok/s", "auto tok/s", "ahead / without (95 %)", "auto / without (95 %)", "drafting hidden",
    "of the bound, without", "of the bound, ahead", "of the widest link",
)  # fmt: skip


def cells(found: Row) -> list[str]:
    """A row of the table."""

    def speed(way: str) -> str:
        return f"{found['speeds'][way]:.1f}" if way in found["speeds"] else ""

    def gain(way: str) -> str:
        return interval(found["gains"][way], ".3f") if way in found["gains"] else ""

    def share(way: str) -> str:
        return interval(found["share_of_bound"][way]) if way in found["share_of_bound"] else ""

    return [
        f"{found['load']}, {found['rtt_ms']:g} ms, {found['mbit']:g}",
        f"{found['gamma']}",
        f"{found['acceptance']:.2f}",
        f"{found['tokens_per_round']:.2f}",
        f"{found['verify_ms']:.1f}",
        f"{found['proposal_bytes']:.0f}",
        speed("without"),
        speed("ahead"),
        speed("auto"),
        gain("ahead"),
        gain("auto"),
        f"{found['hidden']:.0%}",
        share("without"),
        share("ahead"),
        interval(found["of_widest"], ".3f"),
    ]


def page(found: list[Row]) -> str:
    """Its part of docs/benchmarks.md."""
    return Table(COLUMNS, [cells(one) for one in found]).markdown()


def draw(found: list[Row]) -> None:
    """Speed over the round trip, with and without drafting ahead, and the bound; over the widest link."""
    widest = max(one["mbit"] for one in found)
    rows = [one for one in found if one["mbit"] == widest and one["load"] == found[0]["load"]]
    rows.sort(key=lambda one: one["rtt_ms"])
    series = [
        Series(label, [one["speeds"].get(way) for one in rows])
        for way, label in (("ahead", "drafting ahead"), ("without", "without"), ("auto", "deciding for itself"))
        if any(way in one["speeds"] for one in rows)
    ]
    shares = [one["share_of_bound"] for one in rows]
    bound = [one["speeds"]["ahead"] / s["ahead"]["median"] for one, s in zip(rows, shares, strict=True) if "ahead" in s]
    if len(bound) == len(rows):
        series.append(Series("all but the round trip hidden", bound, dashed=True))
    lines(
        NAME,
        [one["rtt_ms"] for one in rows],
        series,
        title=f"One stream at a distance ({rows[0]['load']})",
        x_label="round trip, ms",
        y_label="tokens a second",
    )


def main() -> None:
    """Runs the benchmark and prints its table."""
    options = parser("bench.distance", __doc__, NAME)
    options.add_argument("--pairs", type=int, default=5, help="of answers, for each row")
    options.add_argument("--tokens", type=int, default=96, help="of an answer")
    options.add_argument("--loads", nargs="+", choices=list(LOADS), default=list(LOADS))
    options.add_argument("--rtts", nargs="+", type=float, default=[0, 5, 10, 20, 40, 100], help="milliseconds")
    options.add_argument("--mbits", nargs="+", type=float, default=[1000, 100, 20])
    options.add_argument("--ways", nargs="+", choices=list(WAYS), default=["without", "ahead"])
    options.add_argument("--q-encoding", default="lattice", help="lattice, sparse or dense")
    args = options.parse_args()
    pairs, tokens = (2, 32) if args.quick else (args.pairs, args.tokens)
    if args.quick:
        args.rtts, args.mbits = args.rtts[:1] + args.rtts[-1:], args.mbits[:1] + args.mbits[-1:]
    rows = []
    for name in args.loads:
        with laboratory(LOADS[name], args.ways, args.q_encoding) as lab:
            rtts = [rtt / 1e3 for rtt in args.rtts]
            for one in measure(lab, name, rtts, args.mbits, pairs, tokens):
                rows.append(one)
                print(Table(COLUMNS, [cells(one)]).text(), flush=True)
    found = save(rows, args, lambda one: (one["load"], one["rtt_ms"], one["mbit"]))
    print(f"\n{Table(COLUMNS, [cells(one) for one in found]).text()}")


if __name__ == "__main__":
    main()
