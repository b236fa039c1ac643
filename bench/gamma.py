"""γ control against fixed γ: what a useless draft costs, and how near a good one comes to the best fixed γ.

`python -m bench.gamma [--pairs N] [--streams N] [--tokens N] [--scale S]`: one target, one draft and an orchestrator as
processes over the table engine. A target pass sleeps 20 ms and 0.5 ms for each token, a draft pass 2 ms; S times as
long where other work shares the cores. After a warm-up the same load runs by turns without a γ, so that the draft's
control chooses, and with a fixed one. Speeds are committed tokens per second; each pair of neighbours gives one ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.fake_cluster import FakeCluster, Speed
from draftproof import AsyncClient
from draftproof.testing.statistics import bootstrap_ratio_interval

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


def main() -> None:
    """Runs the benchmark and prints its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=9, help="of runs, for each fixed gamma")
    parser.add_argument("--warm-up", type=int, default=6, help="adaptive runs that don't count")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=128, help="of each stream")
    parser.add_argument("--out", type=Path, default=Path("bench-gamma.json"))
    parser.add_argument("--scale", type=float, default=1.0, help="factor on all sleeps")
    args = parser.parse_args()
    target = Speed(args.scale * TARGET_DELAY, args.scale * TOKEN_DELAY)
    rows = []
    print(
        f"{'draft':<9}{'fixed γ':>8}{'tokens/s':>10}{'accepted':>10}{'adaptive tokens/s':>19}{'γ':>6}{'accepted':>10}"
        f"{'adaptive / fixed':>18}{'95 %':>16}"
    )
    for case in CASES:
        with FakeCluster([target], [Speed(args.scale * DRAFT_DELAY, noise=case.noise)]) as cluster:
            load = args.pairs, args.warm_up, args.streams, args.tokens
            found = asyncio.run(measure(cluster.orchestrator.address, case, *load))
        worst = 2.0
        for gamma, pairs in found.items():
            ratio = bootstrap_ratio_interval([(adaptive.speed, fixed.speed) for adaptive, fixed in pairs])
            worst = min(worst, ratio.median)
            adaptive, fixed = (_middle([pair[i] for pair in pairs]) for i in (0, 1))
            print(
                f"{case.name:<9}{gamma:>8}{fixed.speed:>10.0f}{fixed.acceptance:>10.2f}{adaptive.speed:>19.0f}"
                f"{adaptive.gamma:>6.1f}{adaptive.acceptance:>10.2f}{ratio.median:>18.3f}"
                f"{f'{ratio.low:.3f}–{ratio.high:.3f}':>16}",
                flush=True,
            )
            runs = [[asdict(one) for one in pair] for pair in pairs]
            rows.append({"draft": case.name, "gamma": gamma, **asdict(ratio), "runs": runs})
        print(f"{case.name}: {worst:.3f} of the best fixed γ, {case.goal} wanted", flush=True)
    args.out.write_text(json.dumps(rows, indent=1))


def _middle(runs: list[Run]) -> Run:
    """The run of median speed."""
    return sorted(runs, key=lambda r: r.speed)[len(runs) // 2]


if __name__ == "__main__":
    main()
