"""Cost of everything after the logits, by rule and sampling settings: pipeline, ratios, residual, draw.

16 sessions of 5 proposals each, as the target's pass hands them over. The logits are the embedded model's own in the
midst of answers at T = 1, over V = 49,152 as they are; for V = 151,936 they are repeated, the copies less likely. q is
made of the same logits with noise. By turns with the verification runs what it is held against: the forward pass of
that batch for V = 49,152; for V = 151,936 the product of hidden states and output head alone, of the smallest model of
such a vocabulary (896 wide). Memory is what the process took at its peak beyond what it held before, the logits.
"""

from __future__ import annotations

import ctypes
import gc
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from bench.plot import Series, bars
from bench.prompts import CHAT, CODE
from bench.report import Row as Found
from bench.report import Table, interval, parser, save
from draftproof.engine.config import EMBEDDED, ModelConfig
from draftproof.engine.interface import Engine, Row
from draftproof.engine.loading import load_engine, load_tokenizer
from draftproof.sampling import draft_q
from draftproof.sampling.params import Rule, SamplingParams
from draftproof.sampling.pipeline import distribution
from draftproof.sampling.race import winners
from draftproof.sampling.rng import Draw, Purpose, derive_key, random_words
from draftproof.testing.statistics import bootstrap_median_interval
from draftproof.verification.round import RoundInput, verify_rounds

NAME = "verify"
SESSIONS, GAMMA = 16, 5
VOCABULARIES = (49_152, 151_936)
WIDTH = 896
ANSWERED = 24
SETTINGS: dict[str, dict[str, float]] = {
    "T = 0": {"temperature": 0.0},
    "T = 1": {},
    "T = 0.7": {"temperature": 0.7},
    "top-p 0.95": {"top_p": 0.95},
    "T = 0.7, top-p 0.9": {"temperature": 0.7, "top_p": 0.9},
    "top-k 50": {"top_k": 50},
    "min-p 0.05": {"min_p": 0.05},
    "repetition penalty": {"repetition_penalty": 1.1},
}
CASES = [
    *((setting, rule, "lattice", False) for setting in SETTINGS for rule in (Rule.TOKEN, Rule.BLOCK)),
    *((setting, Rule.COUPLED, "none", False) for setting in SETTINGS),
    *(("T = 1", rule, "lattice", True) for rule in (Rule.TOKEN, Rule.BLOCK)),
    *(("T = 1", rule, "dense", False) for rule in (Rule.TOKEN, Rule.BLOCK)),
]
"""Sampling settings, rule, encoding of q, and whether the audit's evidence is wanted."""
COLUMNS = ("V", "settings", "rule", "q", "ms", "held against, ms", "share (95 %)", "peak, MiB")


class Batch:
    """The batch in the midst of its answers: 16 slots, and the rows of a verification pass over them."""

    def __init__(self) -> None:
        config = ModelConfig(model=EMBEDDED, slots=SESSIONS, dtype="bfloat16")
        tokenizer = load_tokenizer(config)
        self.engine: Engine = load_engine(config, tokenizer=tokenizer)
        asked = (*CHAT, *CODE)[:SESSIONS]
        self.texts = [tokenizer.render_chat([{"role": "user", "content": text}]) for text in asked]
        fed, generator = [0] * SESSIONS, torch.Generator().manual_seed(0)
        for _ in range(ANSWERED + GAMMA):
            rows = [Row(i, fed[i], text[fed[i] :], 1) for i, text in enumerate(self.texts)]
            drawn = torch.multinomial(self.engine.forward(rows).float().softmax(-1), 1, generator=generator)
            for i, text in enumerate(self.texts):
                fed[i] = len(text)
                text.append(int(drawn[i]))
        starts = [len(text) - GAMMA - 1 for text in self.texts]
        self.rows = [Row(i, starts[i], text[starts[i] :], GAMMA + 1) for i, text in enumerate(self.texts)]

    def forward(self) -> Tensor:
        """The pass: float[96, V]."""
        return self.engine.forward(self.rows)


def widened(logits: Tensor, vocab: int) -> Tensor:
    """The same over a larger vocabulary: [N, V] -> [N, vocab]."""
    copies = [logits - 5.0 * i for i in range(-(-vocab // logits.shape[1]))]
    return torch.cat(copies, dim=1)[:, :vocab].contiguous()


def rounds_of(
    logits: Tensor, texts: list[list[int]], setting: str, rule: Rule, encoding: str, audited: bool
) -> list[RoundInput]:
    """What the sessions proposed: drawn from q as a draft would."""
    params = SamplingParams(rule=rule, **SETTINGS[setting])  # type: ignore[arg-type]
    noise = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1))
    # Of the draft's pipeline only what the histories don't touch: they matter to p's cost alone.
    plain = SamplingParams(**{name: value for name, value in SETTINGS[setting].items() if "penalty" not in name})  # type: ignore[arg-type]
    q = distribution(logits.float() + noise, plain)
    found = []
    for i, text in enumerate(texts):
        key, start = derive_key(i, text, 0, 0), len(text)
        rows = q[i * (GAMMA + 1) : (i + 1) * (GAMMA + 1) - 1]
        qs: list[draft_q.DraftQ] = []
        if rule is Rule.COUPLED:
            tokens = winners(rows, [key] * GAMMA, range(start, start + GAMMA)).tolist()
        else:
            qs = list(draft_q.quantise(rows, 128, 12) if encoding == "lattice" else draft_q.dense(rows))
            words = random_words([Draw(key, start, offset, Purpose.DRAFT) for offset in range(GAMMA)])
            tokens = [draft_q.draw(one, int(word)) for one, word in zip(qs, words, strict=True)]
        found.append(
            RoundInput(
                params=params, prompt_ids=text[:-ANSWERED], output_ids=text[-ANSWERED:], key=key,
                block_start=start, tokens=tokens, qs=qs, audited=audited,
            )
        )  # fmt: skip
    return found


def seconds(step: Callable[[], object]) -> float:
    """Of one call."""
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


def peak_bytes(step: Callable[[], object]) -> int | None:
    """What a call takes at its peak beyond what the process held before; None where the system doesn't tell."""
    counters = Path("/proc/self/clear_refs")
    if not counters.exists():
        return None
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    counters.write_text("5")
    before = _status("VmRSS")
    step()
    return _status("VmHWM") - before


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))


def measure(
    base: Tensor, rounds: list[RoundInput], other: Callable[[], object], repeats: int
) -> tuple[list[float], list[float], int | None]:
    """Seconds of verification and of what it is held against, turn and turn about, and peak bytes."""
    work = base.clone()

    def verify() -> None:
        verify_rounds(work, rounds, owned=True)

    verify()
    times, others = [], []
    for _ in range(repeats):
        others.append(seconds(other))
        work.copy_(base)
        times.append(seconds(verify))
    work.copy_(base)
    return times, others, peak_bytes(verify)


def cells(row: Found) -> list[str]:
    """A row of the table."""
    peak = "" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**20:.0f}"
    q = row["q"] + (", audited" if row["audited"] else "")
    share = interval({name: 100 * value for name, value in row["share"].items()}, ".1f") + " %"
    return [
        f"{row['vocabulary']:,}", row["settings"], row["rule"], q, f"{row['ms']:.1f}", f"{row['other_ms']:.0f}", share,
        peak,
    ]  # fmt: skip


def page(found: list[Found]) -> str:
    """Its part of docs/benchmarks.md."""
    logits = " and ".join(f"{SESSIONS * (GAMMA + 1) * v * 4 / 2**20:.0f}" for v in VOCABULARIES)
    return f"The logits themselves take {logits} MiB.\n\n" + Table(COLUMNS, [cells(row) for row in found]).markdown()


def draw(found: list[Found]) -> None:
    """Share of the forward pass, by settings and rule."""
    mine = [r for r in found if r["vocabulary"] == VOCABULARIES[0] and r["q"] != "dense" and not r["audited"]]
    share = {(r["settings"], r["rule"]): r["share"] for r in mine}
    settings = [name for name in SETTINGS if any(key[0] == name for key in share)]
    series = []
    for rule in sorted({r["rule"] for r in mine}):
        values = [share.get((name, rule)) for name in settings]
        series.append(
            Series(
                rule,
                [None if v is None else 100 * v["median"] for v in values],
                [None if v is None else (100 * v["low"], 100 * v["high"]) for v in values],
            )
        )
    title = f"Verification of a batch of {SESSIONS}, V = {VOCABULARIES[0]:,}"
    short = [name.replace(", ", ",\n").replace("repetition ", "repetition\n") for name in settings]
    bars(NAME, short, series, title=title, y_label="% of the forward pass", marks=[10.0])


def main() -> None:
    """Measures every case over both vocabularies."""
    arguments = parser("bench.verify", __doc__, NAME)
    arguments.add_argument("--repeats", type=int, default=7)
    args = arguments.parse_args()
    repeats = 2 if args.quick else args.repeats
    batch = Batch()
    hidden, head = torch.randn(SESSIONS * (GAMMA + 1), WIDTH), torch.randn(VOCABULARIES[1], WIDTH)
    against: dict[int, Callable[[], object]] = {
        VOCABULARIES[0]: batch.forward,
        VOCABULARIES[1]: lambda: hidden @ head.T,
    }
    own = batch.forward().float()
    found: list[Found] = []
    for vocab, other in against.items():
        base = widened(own, vocab)
        for setting, rule, encoding, audited in CASES[:: 5 if args.quick else 1]:
            rounds = rounds_of(base, batch.texts, setting, rule, encoding, audited)
            times, others, peak = measure(base, rounds, other, repeats)
            share = bootstrap_median_interval([a / b for a, b in zip(times, others, strict=True)])
            found.append(
                {"vocabulary": vocab, "settings": setting, "rule": str(rule), "q": encoding, "audited": audited}
                | {"ms": 1e3 * statistics.median(times), "other_ms": 1e3 * statistics.median(others)}
                | {"share": {"median": share.median, "low": share.low, "high": share.high}, "peak_bytes": peak}
            )
            print("  ".join(cells(found[-1])), flush=True)
    print(Table(COLUMNS, [cells(row) for row in found]).text())
    save(found, args, lambda row: (row["vocabulary"], row["settings"], row["rule"], row["q"], row["audited"]))


if __name__ == "__main__":
    main()
