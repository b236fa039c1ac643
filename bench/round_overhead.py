"""What a round costs beyond the two models' own forward passes: wire, validation, sampling, verification, event loops.

`python -m bench.round_overhead [--rounds N] [--draft-layers L]`: starts a target and a draft process on the embedded
model, streams greedy and sampled answers one at a time, and takes the models' compute from the processes' own metrics.
The draft model is the first layers of the target: its acceptance doesn't matter here, its round does.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from bench.cut_draft import cut_draft
from bench.services import TwoServices
from draftproof.cli.health import check
from draftproof.cli.stack import Stack
from draftproof.client import Client

PROMPTS = (
    "Explain in a few sentences why the sky is blue.",
    "Write a short story about a lighthouse keeper.",
    "Give me a recipe for a simple vegetable soup.",
    "What should I look at when I buy a used bicycle?",
    "Describe how a bill becomes a law.",
)

SETTINGS = (("greedy, gamma 4", 0.0, 4), ("T=1, gamma 4", 1.0, 4), ("T=1, gamma 0", 1.0, 0))


def main() -> None:
    """Runs the benchmark and prints its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="answers per setting")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--draft-layers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("bench-round-overhead.json"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        draft = cut_draft(Path(folder) / "draft", args.draft_layers)
        rows = measure(draft, args.rounds, args.tokens)
    print(f"{'setting':<22}{'overhead / round':>18}{'min':>8}{'max':>8}")
    for name, shares in rows.items():
        print(f"{name:<22}{statistics.median(shares):>17.1%}{min(shares):>8.1%}{max(shares):>8.1%}")
    args.out.write_text(json.dumps(rows, indent=1))


def measure(draft: Path, rounds: int, tokens: int) -> dict[str, list[float]]:
    """Share of the wall time that neither model accounts for, per answer and setting."""
    services = TwoServices(drafter="model", draft_model=str(draft), metrics_port=17501, target_metrics_port=17601)
    rows: dict[str, list[float]] = {}
    with Stack() as stack:
        target = stack.start(services.target())
        address = stack.wait_serving(target, 300, check)
        front = stack.wait_serving(stack.start(services.draft(address)), 300, check)
        with Client(front) as client:
            client.generate("Warm up.", max_tokens=16)
            for index in range(rounds):
                for name, temperature, gamma in SETTINGS:
                    before, begin = _compute(), time.perf_counter()
                    client.generate(
                        PROMPTS[index % len(PROMPTS)],
                        max_tokens=tokens,
                        temperature=temperature,
                        gamma=gamma,
                        ignore_eos=True,
                        seed=index,
                    )
                    wall = time.perf_counter() - begin
                    rows.setdefault(name, []).append(1 - (_compute() - before) / wall)
    return rows


def _compute() -> float:
    """Seconds spent in forward passes by both processes so far."""
    return _metric(17601, "draftproof_forward_seconds_sum") + _metric(17501, "draftproof_draft_forward_seconds_total")


def _metric(port: int, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
        text = reply.read().decode()
    samples = [s.value for family in text_string_to_metric_families(text) for s in family.samples if s.name == name]
    return sum(samples)


if __name__ == "__main__":
    main()
