"""`draftproof plan`: what a cluster will do, and how to run it best."""

from __future__ import annotations

import json
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from draftproof.errors import ConfigError
from draftproof.planning.search import Choice, Plan
from draftproof.planning.search import plan as search
from draftproof.planning.setup import Costs, Link, Setup, encodings

_OVERHEAD = 0.001


def run(
    *,
    costs: dict[str, float],
    shared: bool | None,
    acceptance: tuple[float, ...] | None,
    guess: float | None,
    rtt: float,
    bandwidth: float | None,
    vocabulary: int,
    streams: int,
    targets: int,
    drafts: int | None,
    largest: int,
    measure: str | None,
    temperature: float,
    file: Path | None,
    save: Path | None,
    as_json: bool,
) -> None:
    """Gathers the numbers, looks for the best way, prints it.

    Raises:
        ConfigError: a number is missing or can't be.
        RequestError: the cluster to measure doesn't answer as one.
    """
    console = Console(highlight=False)
    known: dict[str, Any] = {"overhead": _OVERHEAD}
    if file is not None:
        known |= read(file)
    if measure is not None:
        from draftproof.cli.measure import measure as measured

        with Console(stderr=True).status(f"measuring {measure}"):
            known |= measured(measure, temperature)
    known |= costs
    known |= {} if shared is None else {"shared": shared}
    known |= {} if acceptance is None else {"acceptance": acceptance}
    known |= {} if guess is None else {"guess": guess}
    setup = Setup(
        costs=costs_of(known),
        link=Link(rtt=rtt, bandwidth=inf if bandwidth is None else bandwidth),
        acceptance=tuple(known["acceptance"]),
        guess=known.get("guess"),
        gamma=0,
        streams=streams,
        targets=targets,
    )
    if save is not None:
        save.write_text(json.dumps(known, indent=1) + "\n")
    found = search(setup, encodings(vocabulary), drafts=() if drafts is None else (drafts,), largest=largest)
    if as_json:
        print(json.dumps(report(found), indent=1))
        return
    show(console, found)


def acceptance(alpha: float | None, text: str | None) -> tuple[float, ...] | None:
    """Acceptance by offset from --alpha or --acceptance; None where neither is given.

    Raises:
        ConfigError: both, or no numbers in [0, 1].
    """
    if text is None:
        return None if alpha is None else (alpha,)
    if alpha is not None:
        raise ConfigError("--alpha", "give it or --acceptance, not both")
    try:
        values = tuple(float(word) for word in text.split(","))
    except ValueError:
        raise ConfigError("--acceptance", f"numbers with commas between, got {text!r}") from None
    if not all(0 <= value <= 1 for value in values):
        raise ConfigError("--acceptance", f"numbers in [0, 1], got {text!r}")
    return values


def costs_of(known: dict[str, Any]) -> Costs:
    """Costs from what is known.

    Raises:
        ConfigError: one that is needed isn't.
    """
    for name, option in (("draft_step", "--draft-step-ms"), ("pass_base", "--pass-ms"), ("acceptance", "--alpha")):
        if name not in known:
            raise ConfigError(option, "is needed, or --measure or --from, which fill it in")
    fields = ("draft_step", "draft_row", "pass_base", "pass_token", "overhead", "shared")
    return Costs(**{name: known[name] for name in fields if name in known})


def read(file: Path) -> dict[str, Any]:
    """Costs from a file of --save, or from the first row of a bench's JSON that holds some under "costs".

    Raises:
        ConfigError: it can't be read, or holds none.
    """
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError("--from", f"{file} can't be read: {error}") from None
    rows = found if isinstance(found, list) else [found]
    for row in rows:
        costs = row.get("costs", row) if isinstance(row, dict) else {}
        if isinstance(costs, dict) and {"draft_step", "pass_base", "acceptance"} <= costs.keys():
            return costs
    raise ConfigError("--from", f"{file} holds no costs; write some with --save, or with `python -m bench.plan`")


def report(found: Plan) -> dict[str, Any]:
    """The plan as JSON holds it: seconds, bytes, tokens a second."""
    return {
        "best": _choice(found.best),
        "simulated": asdict(found.simulated),
        "target_only_tokens_per_second": found.alone.tokens_per_second,
        "gammas": [_choice(one) for one in found.gammas],
        "encodings": [_choice(one) for one in found.encodings],
        "drafts": [_choice(one) for one in found.drafts],
    }


def _choice(one: Choice) -> dict[str, Any]:
    setup, expected = one.setup, one.forecast
    return {
        "gamma": setup.gamma,
        "encoding": setup.encoding.name,
        "ahead": setup.ahead,
        "targets": setup.targets,
        "drafts": setup.drafts,
        "streams": setup.streams,
        "speed_up": one.speed_up,
        "limit": expected.limit,
        **asdict(expected),
    }


def show(console: Console, found: Plan) -> None:
    """Tables: what to run, and how it compares with its neighbours."""
    best, setup, expected = found.best, found.best.setup, found.best.forecast
    facts = Table(box=None, show_header=False, pad_edge=False)
    facts.add_column(style="bold")
    facts.add_column()
    facts.add_row("gamma", str(setup.gamma) if setup.gamma else "0: the target alone is faster")
    if setup.gamma:
        facts.add_row("encoding", f"{setup.encoding.name}, {setup.encoding.size:,.0f} bytes a proposal")
        facts.add_row("draft ahead", "yes" if setup.ahead else "no: nothing to gain")
        facts.add_row("workers", f"{setup.drafts} draft(s) for {setup.targets} target(s)")
    facts.add_row(
        "expected",
        f"{expected.tokens_per_second:,.1f} tokens/s, {expected.tokens_per_second / setup.streams:,.1f} a stream;"
        f" a simulation shows {found.simulated.tokens_per_second:,.1f}",
    )
    facts.add_row("target only", f"{found.alone.tokens_per_second:,.1f} tokens/s, so {best.speed_up:.2f} times that")
    facts.add_row("a round", f"{expected.tokens_per_round:.2f} tokens in {1e3 * expected.cycle:.1f} ms: {_parts(best)}")
    busy = f"target {expected.target_busy:.0%}, each draft {expected.draft_busy:.0%}, its link {expected.link_busy:.0%}"
    facts.add_row("busy", f"{busy}; {expected.batch:.1f} rounds a pass")
    facts.add_row("limited by", expected.limit)
    console.print(facts)
    for title, choices, label in (
        ("gamma", found.gammas, lambda one: str(one.setup.gamma)),
        ("encoding", found.encodings, lambda one: one.setup.encoding.name),
        ("drafts", found.drafts if len(found.drafts) > 1 else (), lambda one: str(one.setup.drafts)),
    ):
        if choices:
            console.print()
            console.print(_table(title, choices, label))


def _parts(one: Choice) -> str:
    return ", ".join(f"{name} {1e3 * seconds:.1f}" for name, seconds in one.forecast.parts.items() if seconds > 5e-5)


def _table(title: str, choices: tuple[Choice, ...], label: Any) -> Table:
    form = Table(box=None, pad_edge=False, header_style="bold")
    for name in (title, "gamma", "tokens/round", "cycle ms", "tokens/s", "speed-up", "limited by"):
        if name != "gamma" or title != name or not form.columns:
            form.add_column(name, justify="left" if name in (title, "limited by") else "right")
    for one in choices:
        expected = one.forecast
        words = [label(one), *([] if title == "gamma" else [str(one.setup.gamma)])]
        words += [
            f"{expected.tokens_per_round:.2f}",
            f"{1e3 * expected.cycle:.1f}",
            f"{expected.tokens_per_second:,.1f}",
            f"{one.speed_up:.2f}",
            expected.limit,
        ]
        form.add_row(*words)
    return form
