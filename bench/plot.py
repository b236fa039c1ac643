"""Figures of the benches, from their JSON: lines or bars with intervals, as docs/pictures/bench-NAME.svg.

`python -m bench.plot [NAME …]` draws anew, without measuring, every bench whose bench-NAME.json lies here. A bench that
has a figure has a function `draw(found)`, which takes what its JSON holds and calls `lines` or `bars`.

Needs matplotlib (`pip install 'draftproof[bench]'`), which is imported when a figure is drawn and not before.
"""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
_STYLE = {
    "svg.hashsalt": "draftproof",  # equal data, equal file
    "svg.fonttype": "none",
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}
_COLOURS = ("#1f6feb", "#d1570b", "#2da44e", "#8250df", "#bf3989", "#57606a", "#9a6700")


@dataclass(frozen=True, slots=True)
class Series:
    """What one colour shows.

    Attributes:
        label: in the legend.
        values: one for each place on the x axis; None leaves it out.
        intervals: (low, high) of each value, empty where there are none.
        dashed: for what was computed, not measured.
    """

    label: str
    values: Sequence[float | None]
    intervals: Sequence[tuple[float, float] | None] = ()
    dashed: bool = False


def lines(
    name: str,
    x: Sequence[float],
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    y_label: str,
    x_log: bool = False,
    y_log: bool = False,
    marks: Sequence[float] = (),
    folder: Path = PICTURES,
) -> Path:
    """Lines over x, their intervals as bands; `marks` are y values drawn as thin lines across. Returns the file."""
    figure, axes = _begin(title, x_label, y_label, marks)
    for colour, one in zip(_COLOURS, series, strict=False):
        known = [i for i, value in enumerate(one.values) if value is not None]
        places = [x[i] for i in known]
        style = {"linestyle": "--"} if one.dashed else {"marker": "o", "markersize": 4}
        axes.plot(places, [one.values[i] for i in known], label=one.label, color=colour, **style)
        banded = [(x[i], *bounds) for i in known if i < len(one.intervals) and (bounds := one.intervals[i])]
        if banded:
            axes.fill_between(*zip(*banded, strict=True), color=colour, alpha=0.15, linewidth=0)
    if x_log:
        axes.set_xscale("log", base=2)
        axes.set_xticks(list(x), [f"{value:g}" for value in x])
    if y_log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    return _end(name, figure, axes, len(series), folder)


def bars(
    name: str,
    groups: Sequence[str],
    series: Sequence[Series],
    *,
    title: str,
    y_label: str,
    x_label: str = "",
    marks: Sequence[float] = (),
    folder: Path = PICTURES,
) -> Path:
    """Groups of bars side by side, one bar of each series in every group, with intervals as whiskers."""
    figure, axes = _begin(title, x_label, y_label, marks)
    width = 0.8 / max(1, len(series))
    for number, (colour, one) in enumerate(zip(_COLOURS, series, strict=False)):
        known = [i for i, value in enumerate(one.values) if value is not None]
        places = [i + (number - (len(series) - 1) / 2) * width for i in known]
        style = {"fill": False, "edgecolor": colour, "linestyle": "--"} if one.dashed else {"color": colour}
        axes.bar(places, [one.values[i] for i in known], width * 0.92, label=one.label, **style)
        for place, i in zip(places, known, strict=True):
            bounds = one.intervals[i] if i < len(one.intervals) else None
            if bounds:
                axes.plot([place, place], bounds, color="black", linewidth=1)
    axes.set_xticks(range(len(groups)), list(groups))
    axes.grid(axis="x", visible=False)
    return _end(name, figure, axes, len(series), folder)


def _begin(title: str, x_label: str, y_label: str, marks: Sequence[float]) -> tuple[Any, Any]:
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams.update(_STYLE)
    figure = Figure(figsize=(7.2, 3.6))
    axes = figure.subplots()
    axes.set_axisbelow(True)
    axes.set(title=title, xlabel=x_label, ylabel=y_label)
    for mark in marks:
        axes.axhline(mark, color="black", linewidth=0.8, linestyle=":")
    return figure, axes


def _end(name: str, figure: Any, axes: Any, series: int, folder: Path) -> Path:
    if series > 1:
        axes.legend()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"bench-{name}.svg"
    figure.savefig(path, metadata={"Date": None})
    return path


def main() -> None:
    """Draws what can be drawn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="of benches; none: all that have left their JSON here")
    names = parser.parse_args().names
    found = sorted(path.stem.removeprefix("bench-") for path in Path().glob("bench-*.json"))
    for name in names or [name for name in found if "." not in name]:  # those of quick runs have one
        draw = getattr(importlib.import_module(f"bench.{name.replace('-', '_')}"), "draw", None)
        if draw is not None:
            draw(json.loads(Path(f"bench-{name}.json").read_text()))
            print(PICTURES / f"bench-{name}.svg")


if __name__ == "__main__":
    main()
