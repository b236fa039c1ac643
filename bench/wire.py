"""Bytes a proposal against acceptance: what lattices of several sizes cost and lose against q as it is.

The target writes answers at T = 1; target and draft then read them, and everywhere sum(min(p, q)) is computed for
q as the draft has it and for the lattice that would be sent. Ids are also spread over V = 151,936: masses as they are,
gaps three times as wide.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bench.cut_draft import cut_draft
from bench.plot import Series, lines
from bench.prompts import CHAT, CODE
from bench.report import Row as Found
from bench.report import Table, parser, save
from draft_service.drafters.model import room
from draftproof.engine.config import EMBEDDED, ModelConfig
from draftproof.engine.interface import Engine, Row
from draftproof.engine.loading import load_engine, load_tokenizer
from draftproof.sampling.draft_q import DraftQ, Lattice, OneHot, quantise
from draftproof.v1 import target_pb2
from draftproof.wire.distribution import encode

NAME = "wire"
VOCABULARIES = (49_152, 151_936)
GAMMA = 4
BITS = (9, 10, 11, 12, 14)
ENTRIES = (32, 64, 96, 128, 192)
COLUMNS = ("T", "entries", "bits", "α", "lost", *(f"bytes, V = {v:,}" for v in VOCABULARIES))


def answers(engine: Engine, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """Prompts with the target's answers at T = 1 behind them."""
    torch.manual_seed(0)
    texts = [list(prompt) for prompt in prompts]
    fed = [0] * len(texts)
    for _ in range(tokens):
        rows = [Row(i, fed[i], text[fed[i] :], 1) for i, text in enumerate(texts)]
        drawn = torch.multinomial(engine.forward(rows).float().softmax(-1), 1)[:, 0].tolist()
        for i, token in enumerate(drawn):
            fed[i] = len(texts[i])
            texts[i].append(token)
    for i in range(len(texts)):
        engine.truncate(i, 0)
    return texts


def read(engine: Engine, texts: list[list[int]], tokens: int) -> Tensor:
    """Logits [texts * tokens, V] of the answers' positions."""
    found = []
    for text in texts:
        found.append(engine.forward([Row(0, 0, text[:-1], tokens)]).float())
        engine.truncate(0, 0)
    return torch.cat(found)


def measure(p: Tensor, q: Tensor, entries: int, bits: int) -> tuple[float, dict[int, float]]:
    """Mean sum(min(p, lattice)) and mean bytes a proposal by V, in blocks that lend entries as the draft's do."""
    overlaps: list[float] = []
    sizes: dict[int, list[int]] = {v: [] for v in VOCABULARIES}
    block: list[DraftQ | None] = []
    for i in range(len(q)):
        (lattice,) = quantise(q[i : i + 1], room(block, entries), bits)
        overlaps.append(float(np.minimum(p[i].numpy()[lattice.ids], lattice.counts / 2**bits).sum()))
        certain = len(lattice.ids) == 1
        block = [*block, OneHot(int(lattice.ids[0])) if certain else lattice] if (i + 1) % GAMMA else []
        for v, found in sizes.items():
            ids = lattice.ids * (v - 1) // (q.shape[1] - 1)
            sent = OneHot(int(ids[0])) if certain else Lattice(bits, ids, lattice.counts)
            found.append(target_pb2.Proposal(token_id=int(ids[-1]), q=encode([sent])[0]).ByteSize())
    return float(np.mean(overlaps)), {v: float(np.mean(found)) for v, found in sizes.items()}


def cells(row: Found) -> list[str]:
    """A row of the table."""
    lost = row["dense_alpha"] - row["alpha"]
    numbers = [f"{row['alpha']:.4f}", f"{lost:.4f}", *(f"{row['bytes'][str(v)]:.0f}" for v in VOCABULARIES)]
    return [f"{row['temperature']:g}", str(row["entries"]), str(row["bits"]), *numbers]


def page(found: list[Found]) -> str:
    """Its part of docs/benchmarks.md."""
    dense = {row["temperature"]: row["dense_alpha"] for row in found}
    intro = "; ".join(f"{alpha:.4f} at T = {temperature:g}" for temperature, alpha in dense.items())
    return (
        f"α with q as it is, {found[0]['positions']} positions: {intro}.\n\n"
        + Table(COLUMNS, [cells(row) for row in found]).markdown()
    )


def draw(found: list[Found]) -> None:
    """Lost acceptance at T = 1 by entries."""
    hot = [row for row in found if row["temperature"] == 1.0]
    entries = sorted({row["entries"] for row in hot})
    lost = {(row["entries"], row["bits"]): row["dense_alpha"] - row["alpha"] for row in hot}
    lines(
        NAME,
        entries,
        [
            Series(f"counts of {bits} bits", [lost.get((e, bits)) for e in entries])
            for bits in sorted({row["bits"] for row in hot})
        ],
        title="Acceptance that a lattice loses against q as it is, T = 1",
        x_label="entries",
        y_label="lost α",
    )


def main() -> None:
    """Measures every size at both temperatures."""
    arguments = parser("bench.wire", __doc__, NAME)
    arguments.add_argument("--draft", help="folder of a draft; else the target's first layers")
    arguments.add_argument("--layers", type=int, default=24, help="of the target, where no draft is given")
    args = arguments.parse_args()
    texts_n, tokens = (4, 24) if args.quick else (16, 64)
    config = ModelConfig(model=EMBEDDED, slots=texts_n, dtype="bfloat16")
    tokenizer = load_tokenizer(config)
    prompts = [tokenizer.render_chat([{"role": "user", "content": text}]) for text in (*CHAT[:10], *CODE)[:texts_n]]
    target = load_engine(config, tokenizer=tokenizer)
    texts = answers(target, prompts, tokens)
    p_logits = read(target, texts, tokens)
    with tempfile.TemporaryDirectory() as folder:
        draft = args.draft or str(cut_draft(Path(folder), args.layers))
        q_logits = read(load_engine(ModelConfig(model=draft, slots=1, dtype="bfloat16")), texts, tokens)
    rows: list[Found] = []
    for temperature in (1.0, 0.7):
        p, q = (p_logits / temperature).softmax(-1), (q_logits / temperature).softmax(-1)
        dense = float(torch.minimum(p, q).sum(-1).mean())
        for bits in BITS:
            for entries in ENTRIES:
                alpha, sizes = measure(p, q, entries, bits)
                rows.append(
                    {"temperature": temperature, "entries": entries, "bits": bits, "alpha": alpha}
                    | {"dense_alpha": dense, "positions": len(q), "bytes": {str(v): sizes[v] for v in VOCABULARIES}}
                )
                print("  ".join(cells(rows[-1])), flush=True)
    print(Table(COLUMNS, [cells(row) for row in rows]).text())
    save(rows, args, lambda row: (row["temperature"], row["entries"], row["bits"]))


if __name__ == "__main__":
    main()
