"""What a step of the packed forward costs by part, and what reading its weights once would cost at this machine's pace.

    python -m bench.engine_parts [--model MODEL] [--dtype DTYPE …] [--tokens N …] [--threads N] [--json FILE]

One sequence of 200 cached tokens. Each round times the whole step, then its matrix products alone (head included), the
head alone, and attention with rotation and the writes of keys and values; medians of all rounds. The rest is norms,
the embedding and Python. The floor is the bytes of the weights over the best pace at which this process reads memory.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from draftproof.engine.config import EMBEDDED, ModelConfig
from draftproof.engine.engine import TransformersEngine
from draftproof.engine.int8 import Int8Projection
from draftproof.engine.interface import Row
from draftproof.engine.layout import BatchLayout, Span, plan
from draftproof.engine.loading import load_engine
from draftproof.engine.packed import PackedModel
from draftproof.engine.projections import HalfProjection, Head, ReducedProjection

PREFIX = 200


@dataclass(frozen=True, slots=True)
class Parts:
    """Medians of one width, milliseconds; gigabytes a second of the machine."""

    dtype: str
    tokens: int
    step: float
    products: float
    head: float
    attention: float
    rest: float
    floor: float
    floor_ratio: float
    bandwidth: float


def bandwidth() -> float:
    """Best pace of summing 512 MB, GB/s."""
    numbers = torch.ones(128 << 20)
    return numbers.nbytes / 1e6 / min(_timed(numbers.sum) for _ in range(7))


def weight_bytes(run: PackedModel) -> int:
    """Bytes that the products of one pass read."""
    hidden = run.norm.numel()
    total = 0
    for layer in run.layers:
        inside = run.heads * run.cos.shape[-1]
        sides = ((layer.qkv, hidden), (layer.out, inside), (layer.gate, hidden), (layer.up, hidden))
        total += sum(_bytes(part, width, run) for part, width in (*sides, (layer.down, layer.gate.width)))
    return total + _bytes(run.head, hidden, run)


def _bytes(part: Head, width: int, run: PackedModel) -> int:
    if isinstance(part, ReducedProjection):
        part = part.known
    each = 1 if isinstance(part, Int8Projection) else 2 if isinstance(part, HalfProjection) else run.norm.element_size()
    return part.width * width * each


def _timed(step: Callable[[], object]) -> float:
    start = time.perf_counter()
    step()
    return (time.perf_counter() - start) * 1e3


@torch.inference_mode()
def measure(engine: TransformersEngine, dtype: str, tokens: int, rounds: int, pace: float) -> Parts:
    """Times one width; engine's forward has to be the packed one."""
    run = engine.run
    assert isinstance(run, PackedModel)
    ids = torch.randint(0, engine.vocab_size, (PREFIX + tokens,), generator=torch.Generator().manual_seed(0)).tolist()
    engine.truncate(0, 0)
    engine.forward([Row(0, 0, ids[:PREFIX], 0)])
    row = Row(0, PREFIX, ids[PREFIX:], tokens)
    dim = run.cos.shape[-1]
    x = torch.randn(tokens, run.norm.numel()).to(run.norm.dtype)
    inside = torch.randn(tokens, run.heads * dim).to(x.dtype)
    qkv = torch.randn(tokens, run.heads + 2 * run.kv_heads, dim).to(x.dtype)
    where = torch.arange(PREFIX, PREFIX + tokens)
    cos, sin = run.cos[where], run.sin[where]

    def products() -> None:
        for layer in run.layers:
            layer.qkv(x)
            layer.out.plus(inside, x)
            layer.down.plus(layer.up.times(x, layer.gate.silu(x)), x)
        run.head(x)

    def attend() -> None:
        layout = BatchLayout(engine._store, plan([Span(0, PREFIX, tokens)]))
        for index, layer in enumerate(run.layers):
            run._attend(layout, index, layer, qkv, cos, sin)

    parts: dict[str, Callable[[], object]] = {
        "step": lambda: engine.forward([row]),
        "products": products,
        "head": lambda: run.head(x),
        "attention": attend,
    }
    times: dict[str, list[float]] = {name: [] for name in parts}
    for part in parts.values():
        part()
    for _ in range(rounds):
        for name, part in parts.items():
            times[name].append(_timed(part))
    found = {name: statistics.median(values) for name, values in times.items()}
    floor = weight_bytes(run) / 1e6 / pace
    rest = found["step"] - found["products"] - found["attention"]
    return Parts(dtype, tokens, **found, rest=rest, floor=floor, floor_ratio=found["step"] / floor, bandwidth=pace)


def main() -> None:
    """Measures every width and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=EMBEDDED)
    parser.add_argument("--dtype", nargs="+", default=["bfloat16", "int8"])
    parser.add_argument("--tokens", nargs="+", type=int, default=[1, 2, 3, 5, 9])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path, help="also write the results here")
    options = parser.parse_args()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    pace = bandwidth()
    print(f"{torch.get_num_threads()} threads read {pace:.1f} GB/s")
    names = ("step", "products", "head", "attention", "rest", "floor")
    print(f"{'dtype':9} {'tokens':>6} " + " ".join(f"{name:>9}" for name in names) + "  step/floor   (ms)")
    results: list[Parts] = []
    for dtype in options.dtype:
        engine = load_engine(
            ModelConfig(model=options.model, dtype=dtype, slots=1, max_context=512, threads=options.threads)
        )
        for tokens in options.tokens:
            parts = measure(engine, dtype, tokens, options.rounds, pace)
            results.append(parts)
            row = " ".join(f"{getattr(parts, name):9.2f}" for name in names)
            print(f"{dtype:9} {tokens:6} {row} {parts.floor_ratio:11.2f}", flush=True)
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=2) + "\n")


if __name__ == "__main__":
    main()
