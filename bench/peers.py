"""The same prompts, model and machine, decoded by others: transformers' own generation, and llama.cpp where it is here.

All run by turns, a prompt at a time, so that the machine's moods hit all alike; each turn gives one ratio to Draftproof
(client, orchestrator, draft and target, all of them processes). transformers runs in this process on the same weights
and dtype: plain `generate`, assisted generation with the same draft, and its prompt lookup. A speed is tokens a second
after the first, the prompt's reading left out: a run of one token is taken off each other way's time.

With `--backend llamacpp` Draftproof's target runs on llama.cpp, too, and only llama.cpp's own ways stand beside it.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.cluster import DRAFT_MODEL, chat, cluster, draft_folder
from bench.plot import Series, bars
from bench.prompts import KINDS
from bench.report import Row, Table, interval, parser, save
from draftproof.cli.cluster import LocalCluster
from draftproof.client import Client
from draftproof.testing.statistics import bootstrap_ratio_interval

NAME = "peers"
OURS = "Draftproof"
Decode = Callable[[str, float, int], tuple[int, float]]
"""Prompt, temperature, most tokens: tokens after the first, and seconds for them."""


def draftproof(client: Client, gamma: int | None) -> Decode:
    """Through the whole stack."""

    def decode(prompt: str, temperature: float, tokens: int) -> tuple[int, float]:
        arrivals = []
        with client.stream(**chat(prompt), temperature=temperature, max_tokens=tokens, gamma=gamma) as stream:
            for chunk in stream:
                arrivals.append((time.perf_counter(), len(chunk.tokens)))
        return sum(count for _, count in arrivals[1:]), arrivals[-1][0] - arrivals[0][0]

    return decode


def transformers_peers(dtype: str, draft: str | None, lookup: bool) -> dict[str, Decode]:
    """transformers on the embedded model: plain, assisted by the draft, and with its prompt lookup."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from draftproof.engine.embedded import prepare

    torch.set_num_threads(os.cpu_count() or 1)
    source = prepare()
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=getattr(torch, dtype)).eval()

    def way(**more: Any) -> Decode:
        def decode(prompt: str, temperature: float, tokens: int) -> tuple[int, float]:
            inputs = tokenizer.apply_chat_template(
                chat(prompt)["messages"], add_generation_prompt=True, return_tensors="pt", return_dict=True
            )
            length = inputs["input_ids"].shape[1]
            sampling = (
                {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
            )

            def run(most: int, **how: Any) -> tuple[int, float]:
                begin = time.perf_counter()
                with torch.inference_mode():
                    done = model.generate(
                        **inputs, **sampling, max_new_tokens=most, pad_token_id=tokenizer.pad_token_id, **how
                    )
                return done.shape[1] - length, time.perf_counter() - begin

            _, reading = run(1)
            count, seconds = run(tokens, **more)
            return count - 1, seconds - reading

        return decode

    found = {"transformers, plain": way()}
    if draft is not None:
        found["transformers, assisted"] = way(assistant_model=assistant(draft, dtype))
    if lookup:
        found["transformers, prompt lookup"] = way(prompt_lookup_num_tokens=10)
    return found


def assistant(draft: str, dtype: str) -> Any:
    """The draft as a transformers model."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(draft, dtype=getattr(torch, dtype)).eval()


@contextmanager
def llamacpp_peers() -> Iterator[dict[str, Decode]]:
    """llama.cpp on the same GGUF, where its package is installed."""
    with suppress(ImportError):
        from bench.peer_llamacpp import peers

        yield peers()
        return
    yield {}


def measure(ways: dict[str, Decode], kind: str, temperature: float, turns: int, tokens: int) -> Row:
    """Every way once for each prompt; who runs first changes from prompt to prompt."""
    prompts = KINDS[kind]
    for decode in ways.values():
        decode(prompts[-1], temperature, tokens)
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    for i in range(turns):
        names = list(ways) if i % 2 == 0 else list(reversed(ways))
        for name in names:
            count, seconds = ways[name](prompts[i % (len(prompts) - 1)], temperature, tokens)
            speeds[name].append(count / seconds)
    return {
        "kind": kind,
        "temperature": temperature,
        "speeds": speeds,
        "ratios": {
            name: asdict(bootstrap_ratio_interval(list(zip(speeds[OURS], values, strict=True))))
            for name, values in speeds.items()
            if name != OURS
        },
    }


COLUMNS = ("prompts, T", "way", "tok/s", "Draftproof is … times as fast (95 %)")


def table(found: list[Row]) -> Table:
    """All ways of all cases."""
    form = Table(COLUMNS)
    for row in found:
        case = label(row)
        for name, speeds in row["speeds"].items():
            ratio = row["ratios"].get(name)
            form.rows.append(
                [
                    case,
                    name,
                    f"{statistics.median(speeds):.1f}",
                    interval(ratio) if ratio else "",
                ]
            )
        if not any(name.startswith("llama.cpp") for name in row["speeds"]):
            form.rows.append([case, "llama.cpp", "not installed", ""])
    return form


def label(row: Row) -> str:
    """A case in words."""
    engine = "" if row.get("backend", "transformers") == "transformers" else ", target by llama.cpp"
    return f"{row['kind']}, {row['temperature']:g}{engine}"


def page(found: list[Row]) -> str:
    """Its part of docs/benchmarks.md."""
    return table(found).markdown()


def draw(found: list[Row]) -> None:
    """Tokens a second by way and case."""
    names = list(dict.fromkeys(name for row in found for name in row["speeds"]))
    bars(
        NAME,
        [label(row) for row in found],
        [
            Series(name, [statistics.median(row["speeds"][name]) if name in row["speeds"] else None for row in found])
            for name in names
        ],
        title="One stream, the same model on the same machine",
        y_label="tokens/s",
    )


def main() -> None:
    """Runs the benchmark and prints its table."""
    options = parser("bench.peers", __doc__, NAME)
    options.add_argument("--turns", type=int, default=5, help="prompts for each row")
    options.add_argument("--tokens", type=int, default=64, help="most of an answer")
    options.add_argument("--kinds", nargs="+", default=["chat", "summarise"], help="summarise: with prompt lookup")
    options.add_argument("--temperatures", nargs="+", type=float, default=[0.0, 1.0])
    options.add_argument("--backend", default="transformers", help="of Draftproof's target: transformers or llamacpp")
    options.add_argument("--dtype", default="bfloat16", help="bfloat16 or float32, of all but llama.cpp")
    options.add_argument(
        "--draft-model", default=DRAFT_MODEL, help="name, folder, or cut-N: the target's first N layers"
    )
    args = options.parse_args()
    turns, tokens = (1, 16) if args.quick else (args.turns, args.tokens)
    rows = []
    for kind in args.kinds:
        lookup = kind == "summarise"
        with tempfile.TemporaryDirectory() as folder:
            draft = None if lookup else draft_folder(args.draft_model, Path(folder))
            own = args.backend == "transformers"
            settings = LocalCluster(
                backend=args.backend,
                dtype=args.dtype if own else None,
                drafter="ngram" if lookup else "model",
                draft_model=draft,
            )
            peers = transformers_peers(args.dtype, draft, lookup) if own else {}
            with (
                llamacpp_peers() as others,
                cluster(settings, Path(folder)) as running,
                Client(running.address) as client,
            ):
                ways = {OURS: draftproof(client, None), "Draftproof, target only": draftproof(client, 0)}
                for temperature in args.temperatures:
                    row = measure({**ways, **peers, **others}, kind, temperature, turns, tokens)
                    rows.append({**row, "backend": args.backend})
    found = save(rows, args, lambda row: (row["kind"], row["temperature"], row.get("backend")))
    print(table(found).text())
    if not args.quick:
        draw(found)


if __name__ == "__main__":
    main()
