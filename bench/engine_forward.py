"""The engine's ragged pass against transformers' own forward with its DynamicCache, on the same rows.

    python -m bench.engine_forward [--model MODEL] [--dtype DTYPE …] [--rounds N] [--json FILE]

Both run in one process on equal weights of one dtype, turn and turn about, so that the machine's moods hit both alike;
a case's ratio is the median over rounds of engine time / mean of the two transformers times around it. transformers'
cache is cropped after every step and the engine's slots roll back, so each repetition computes the same positions.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel

from draftproof.engine.config import EMBEDDED, ModelConfig
from draftproof.engine.engine import TransformersEngine
from draftproof.engine.interface import Row
from draftproof.engine.loading import find, load_engine

PREFIX = 200


@dataclass(frozen=True, slots=True)
class Case:
    """Rows of one step: `rows` sequences of `tokens` new tokens each, all of which want logits."""

    name: str
    rows: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Result:
    """Medians of one case.

    Attributes:
        engine_ms: the ragged pass.
        transformers_ms: the model's own forward.
        ratio: median of the rounds' ratios of wall time.
        cpu_ratio: the same of CPU time, which other processes on the machine disturb less.
    """

    dtype: str
    case: str
    engine_ms: float
    transformers_ms: float
    ratio: float
    cpu_ratio: float


CASES = (Case("decode, 1 row", 1, 1), Case("verify, 1 row x 5", 1, 5), Case("verify, 8 rows x 5", 8, 5))


def measure(engine: TransformersEngine, model: PreTrainedModel, case: Case, rounds: int, dtype: str) -> Result:
    """Times both ways, A B A B …"""
    prefix = torch.randint(0, engine.vocab_size, (case.rows, PREFIX), generator=torch.Generator().manual_seed(0))
    new = torch.randint(0, engine.vocab_size, (case.rows, case.tokens), generator=torch.Generator().manual_seed(1))
    for slot in range(case.rows):
        engine.forward([Row(slot, 0, prefix[slot].tolist(), 0)])
    rows = [Row(slot, PREFIX, new[slot].tolist(), case.tokens) for slot in range(case.rows)]

    with torch.inference_mode():
        cache = DynamicCache(config=model.config)
        model(input_ids=prefix, cache=cache, use_cache=True, logits_to_keep=1)

        def theirs() -> torch.Tensor:
            logits: torch.Tensor = model(input_ids=new, cache=cache, use_cache=True).logits
            cache.crop(-case.tokens)
            return logits

        def ours() -> torch.Tensor:
            return engine.forward(rows)

        def timed(step: Callable[[], torch.Tensor]) -> tuple[float, float]:
            step()
            wall, cpu = time.perf_counter(), time.process_time()
            step()
            step()
            return (time.perf_counter() - wall) / 2 * 1e3, (time.process_time() - cpu) / 2 * 1e3

        their_times, our_times = [timed(theirs)], []
        for _ in range(rounds):
            our_times.append(timed(ours))
            their_times.append(timed(theirs))
    for slot in range(case.rows):
        engine.truncate(slot, 0)
    return Result(
        dtype,
        case.name,
        statistics.median(wall for wall, _ in our_times),
        statistics.median(wall for wall, _ in their_times),
        *(_ratio([times[clock] for times in our_times], [times[clock] for times in their_times]) for clock in (0, 1)),
    )


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Median of ours[i] over the mean of theirs[i] and theirs[i + 1]."""
    around = [(before + after) / 2 for before, after in pairwise(theirs)]
    return statistics.median(mine / other for mine, other in zip(ours, around, strict=True))


def main() -> None:
    """Measures every case and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=EMBEDDED)
    parser.add_argument("--dtype", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path, help="also write the results here")
    options = parser.parse_args()
    results: list[Result] = []
    print(f"{'dtype':10} {'case':20} {'engine ms':>10} {'transformers ms':>16} {'ratio':>6} {'cpu ratio':>9}")
    for dtype in options.dtype:
        config = ModelConfig(model=options.model, dtype=dtype, slots=8, max_context=512, threads=options.threads)
        engine = load_engine(config)
        source = find(config)
        model = AutoModelForCausalLM.from_pretrained(
            source.location, **source.keywords, dtype=getattr(torch, dtype), attn_implementation="sdpa"
        ).eval()
        for case in CASES:
            result = measure(engine, model, case, options.rounds, dtype)
            results.append(result)
            print(
                f"{result.dtype:10} {result.case:20} {result.engine_ms:10.1f} {result.transformers_ms:16.1f}"
                f" {result.ratio:6.2f} {result.cpu_ratio:9.2f}",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=2) + "\n")


if __name__ == "__main__":
    main()
