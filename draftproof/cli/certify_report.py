"""What was found, as JSON, as Markdown with figures, and on the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from draftproof.certify.verdict import Judged
from draftproof.cli.certify_cases import Case, pipeline_fields
from draftproof.cli.certify_cluster import Tally
from draftproof.client import TokenSource

RESTLESS = 0.2
"""Share of --tv by which p may move with the shape of a batch before the report warns."""


def record(
    facts: dict[str, Any],
    made: Sequence[Case],
    judged: Sequence[Judged],
    tallies: Sequence[Tally],
    numerics: dict[str, Any] | None,
) -> dict[str, Any]:
    """The whole report as one JSON object."""
    rows = [_case(case, one, tally) for case, one, tally in zip(made, judged, tallies, strict=True)]
    result = "failed" if any(is_bad(row) for row in rows) else "passed" if _speculated(facts, rows) else "untested"
    return {
        "passed": result == "passed",
        "verdict": result,
        **facts,
        "cases": rows,
        "numerics": numerics,
        "warnings": _warnings(facts, rows),
    }


def _case(case: Case, one: Judged, tally: Tally) -> dict[str, Any]:
    test, planned = one.test, one.planned
    return {
        "name": case.name,
        "sampling": {k: v for k, v in pipeline_fields(case.sampling).items() if v},
        "rule": str(case.sampling.rule),
        "lenience": case.sampling.lenience,
        "prompt": case.prompt,
        "samples": planned.total,
        "power": planned.power,
        "findable": planned.findable,
        "statistic": test.statistic if math.isfinite(test.statistic) else None,
        "degrees": test.degrees,
        "p_value": test.p_value,
        "impossible": test.impossible,
        "failed": one.failed,
        "tv_bound": one.bound,
        "tv_seen": one.seen,
        "tv_noise": one.noise,
        "sources": {str(source): tally.sources[str(source)] for source in TokenSource},
        "bytes_per_proposal": tally.bytes / tally.proposals if tally.proposals else None,
        "not_lossless": tally.bent,
        "reported_loss": tally.loss,
        "cells": [{"outcomes": c.outcomes, "expected": c.expected, "observed": c.observed} for c in one.cells],
    }


def is_bad(row: dict[str, Any]) -> bool:
    """Whether a case failed."""
    return bool(row["failed"] or row["not_lossless"])


def _speculated(facts: dict[str, Any], rows: Sequence[dict[str, Any]]) -> bool:
    """Whether proposals were looked at, where there were to be any: a drafter may have had nothing to propose."""
    return not facts["gamma"] or any(row["sources"]["accepted"] + row["sources"]["resampled"] for row in rows)


def _warnings(facts: dict[str, Any], rows: Sequence[dict[str, Any]]) -> list[str]:
    found = []
    for row in rows:
        speculative = row["rule"] != "coupled" and facts["gamma"]
        wanted = ("accepted", "resampled", "bonus") if speculative else ("accepted",) if facts["gamma"] else ()
        missing = [name for name in wanted if not row["sources"][name]]
        if missing:
            found.append(
                f"{row['name']}: no {' and no '.join(missing)} tokens were tested; try another prompt or gamma"
            )
        if row["not_lossless"]:
            found.append(f"{row['name']}: the cluster itself calls {row['not_lossless']} answers not lossless")
        if row["impossible"]:
            found.append(f"{row['name']}: {row['impossible']} answers hold a token to which the target gives no mass")
        if row["power"] < facts["power"]:
            found.append(f"{row['name']}: finds TV ≥ {facts['tv']:g} with probability {row['power']:.3f} only")
    for name, moved in facts["wobble"].items():
        if moved > RESTLESS * facts["tv"]:
            found.append(
                f"{name}: p itself moves by TV {moved:.4f} with the shape of the batch; the tests can't tell that"
                " from a wrong law (docs/certify.md)"
            )
    return found


def cells_of(row: dict[str, Any]) -> list[str]:
    """A case in the table."""
    statistic = "∞" if row["statistic"] is None else f"{row['statistic']:.1f}"
    tested = " / ".join(f"{row['sources'][str(source)]:,}" for source in TokenSource)
    return [
        row["name"],
        f"{row['samples']:,}",
        f"{statistic} ({row['degrees']})",
        f"{row['p_value']:.2g}",
        f"{row['tv_seen']:.3f} ({row['tv_noise']:.3f})",
        f"{row['tv_bound']:.3f}",
        tested,
        "FAILED" if is_bad(row) else "passed",
    ]


HEADER = (
    "case",
    "samples",
    "G (degrees)",
    "p-value",
    "TV seen (noise)",
    "TV at most",
    "tokens: accepted / resampled / bonus / target",
    "verdict",
)


_COLOURS = {"passed": "bold green", "failed": "bold red", "untested": "bold yellow"}


def show(console: Console, found: dict[str, Any]) -> None:
    """Tables on the terminal."""
    form = Table(box=None, pad_edge=False, header_style="bold")
    for name in HEADER:
        form.add_column(name, justify="left" if name in ("case", "verdict") else "right")
    for row in found["cases"]:
        form.add_row(*cells_of(row), style="bold red" if is_bad(row) else "")
    console.print(form)
    for line in _numerics(found):
        console.print(line, markup=False)
    for warning in found["warnings"]:
        console.print(f"note: {warning}", style="yellow", markup=False, soft_wrap=True)
    console.print(verdict(found), style=_COLOURS[found["verdict"]], soft_wrap=True)


def verdict(found: dict[str, Any]) -> str:
    """The verdict in words."""
    if found["verdict"] == "untested":
        return (
            f"UNTESTED: the drafter ({found['server']['drafter'] or 'none'}) proposed nothing, so that all tokens were"
            " the target's own draws. Try a prompt it has something to say to, or --gamma 0 to test the target alone."
        )
    if not found["passed"]:
        return "FAILED: the output does not follow the law that the target states."
    least = min(row["power"] for row in found["cases"])
    bound = max(row["tv_bound"] for row in found["cases"])
    return (
        f"PASSED: every test would have found a total variation of {found['tv']:g} with probability {least:.3f}"
        f" or more; with 99 % confidence for each, the law over its cells is within {bound:.3f}."
    )


def _numerics(found: dict[str, Any]) -> list[str]:
    if found["numerics"] is None:
        return []
    rows = [f"{one['tokens']} tokens: {one['mean']:.5f} ({one['max']:.5f})" for one in found["numerics"]["by_length"]]
    return [
        f"TV of the served p to {found['numerics']['model']} in float32, mean (largest) of {found['numerics']['texts']}"
        " texts:",
        *rows,
    ]


LEGEND = (
    "TV seen is the distance of the counts from the law; noise is what an exact cluster shows on average. TV at most is"
    " the upper 99 % bound over the cells of that test. Tokens are those that the test looked at."
)


def circumstances(found: dict[str, Any]) -> str:
    """What was tested, when and how."""
    server = found["server"]
    return (
        f"{found['when']}, release {server['version']}, target {server['target']} (weights version"
        f" {server['weights_version']}, SHA-256 {server['target_weights_sha256'][:16] or 'unknown'}…), drafter"
        f" {server['drafter'] or 'none'}, γ = {found['gamma']}, {found['streams']} requests at once,"
        f" {found['seconds']:.0f} s of sampling. An exact cluster fails with probability {found['alpha']:g} at most,"
        " over all tests together (Holm)."
    )


def plans(found: dict[str, Any]) -> list[str]:
    """What was known of each test before sampling."""
    return [
        f"{row['name']}: {row['samples']:,} continuations of {found['gamma'] + 1} tokens, {row['degrees'] + 1} cells;"
        f" finds TV ≥ {found['tv']:g} with probability ≥ {row['power']:.4f} and TV ≥ {row['findable']:.3f} with"
        f" {found['power']:g}. Settings {row['sampling'] or 'at their defaults'}."
        for row in found["cases"]
    ]


def markdown(found: dict[str, Any], pictures: Sequence[str]) -> str:
    """The report for people."""
    lines = [
        f"# Certification of {found['endpoint']}",
        "",
        f"**{verdict(found)}**",
        "",
        circumstances(found),
        "",
        "| " + " | ".join(HEADER) + " |",
        "|" + "---|" * len(HEADER),
        *("| " + " | ".join(cells_of(row)) + " |" for row in found["cases"]),
        "",
        LEGEND,
        "",
        *(f"![{name}]({name})\n" for name in pictures),
    ]
    if found["warnings"]:
        lines += ["## Notes", "", *(f"- {warning}" for warning in found["warnings"]), ""]
    if (numerics := found["numerics"]) is not None:
        lines += [
            f"## Served p against float32 ({numerics['model']})",
            "",
            "| tokens of context | mean TV | largest |",
            "|---|---|---|",
            *(f"| {one['tokens']} | {one['mean']:.5f} | {one['max']:.5f} |" for one in numerics["by_length"]),
            "",
        ]
    lines += ["## Before sampling", ""]
    lines += [f"- {line}" for line in plans(found)]
    lines += ["", "Prompts: " + "; ".join(f"“{text}”" for text in found["prompts"]), ""]
    return "\n".join(lines)


def draw(found: dict[str, Any], folder: Path) -> list[str]:
    """Figures beside the report, by name; none without matplotlib."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        return []
    matplotlib.rcParams.update({"svg.hashsalt": "draftproof", "svg.fonttype": "none", "font.size": 9.0})
    rows = found["cases"]
    names = [row["name"] for row in rows]

    figure = Figure(figsize=(7.2, 1.2 + 0.32 * len(rows)), layout="constrained")
    axes = figure.subplots()
    colours = ["#d1242f" if row["failed"] else "#1f6feb" for row in rows]
    axes.barh(names, [row["tv_bound"] for row in rows], color=colours, height=0.6)
    axes.axvline(found["tv"], color="black", linestyle=":", linewidth=1)
    axes.invert_yaxis()
    axes.set(title="Total variation at most, with 99 % confidence", xlabel=f"TV; dotted: --tv {found['tv']:g}")
    figure.savefig(folder / "bounds.svg", metadata={"Date": None})

    figure = Figure(figsize=(7.2, 3.8), layout="constrained")
    axes = figure.subplots()
    for row in rows:
        expected = [cell["expected"] for cell in row["cells"]]
        shift = [(cell["observed"] - cell["expected"]) / math.sqrt(cell["expected"]) for cell in row["cells"]]
        axes.plot(expected, shift, ".", markersize=4, alpha=0.7, label=row["name"])
    axes.axhspan(-2, 2, color="black", alpha=0.06)
    axes.set(xscale="log", title="Every cell", xlabel="expected count", ylabel="(observed − expected) / √expected")
    axes.legend(fontsize=7, frameon=False, ncols=2)
    figure.savefig(folder / "cells.svg", metadata={"Date": None})
    return ["bounds.svg", "cells.svg"]
