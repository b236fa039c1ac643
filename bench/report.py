"""What a bench leaves behind: a table on the terminal, the same one for docs/benchmarks.md, and its JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftproof.testing.statistics import MedianInterval

Row = dict[str, Any]


@dataclass(slots=True)
class Table:
    """A table that is printed while it grows.

    Attributes:
        columns: headings; the first column is aligned to the left.
        rows: cells.
    """

    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)

    def text(self) -> str:
        """Aligned, for a terminal."""
        lines = [self.columns, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.columns))]
        return "\n".join(
            "  ".join(
                cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True))
            )
            for line in lines
        )

    def markdown(self) -> str:
        """For docs/benchmarks.md."""
        lines = [self.columns, ["---", *["---:"] * (len(self.columns) - 1)], *self.rows]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def interval(found: MedianInterval | Row, form: str = ".2f") -> str:
    """Median with its interval: 1.31 (1.28–1.35)."""
    values = found if isinstance(found, dict) else {"median": found.median, "low": found.low, "high": found.high}
    return f"{values['median']:{form}} ({values['low']:{form}}–{values['high']:{form}})"


def parser(module: str, doc: str | None, name: str) -> argparse.ArgumentParser:
    """Command line with what all benches share: --quick and --out."""
    found = argparse.ArgumentParser(
        prog=f"python -m {module}", description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("--quick", action="store_true", help="a short run: shows that it works, not what it is worth")
    found.add_argument("--out", type=Path, default=Path(f"bench-{name}.json"), help="JSON of the results")
    found.add_argument("--keep", action="store_true", help="keep what --out holds of other rows than this run's")
    return found


def save(rows: Sequence[Row], args: argparse.Namespace, key: Callable[[Row], Any]) -> list[Row]:
    """Writes the rows; with --keep after those that the file holds already under other keys. Returns all.

    A quick run leaves a file of its own, so that it spoils nothing.
    """
    path: Path = args.out.with_suffix(".quick.json") if args.quick else args.out
    mine = {key(row) for row in rows}
    before = json.loads(path.read_text()) if args.keep and path.exists() else []
    merged = [row for row in before if key(row) not in mine] + list(rows)
    path.write_text(json.dumps(merged, indent=1) + "\n")
    return merged
