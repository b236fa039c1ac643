"""What was found as one HTML file that needs nothing beside it: tables, figures and all."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from draftproof.cli.certify_report import HEADER, LEGEND, cells_of, circumstances, draw, is_bad, plans, verdict

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1f2328 }
table { border-collapse: collapse; margin: 1rem 0 } th, td { padding: .3rem .6rem; text-align: right }
th { border-bottom: 2px solid #d0d7de; vertical-align: bottom } td { border-bottom: 1px solid #d0d7de }
th:first-child, td:first-child, td:last-child { text-align: left } tr.bad td { color: #d1242f; font-weight: 600 }
.verdict { padding: .8rem 1rem; border-left: 5px solid #9a6700; background: #fff8c5; font-weight: 600 }
.passed { border-color: #1a7f37; background: #dafbe1 } .failed { border-color: #d1242f; background: #ffebe9 }
figure { margin: 1.5rem 0 } svg { max-width: 100%; height: auto } small { color: #59636e }
"""


def html(found: dict[str, Any]) -> str:
    """The report for browsers."""
    title = f"Certification of {found['endpoint']}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="verdict {found["verdict"]}">{escape(verdict(found))}</p>',
        f"<p>{escape(circumstances(found))}</p>",
        _table(HEADER, [cells_of(row) for row in found["cases"]], [is_bad(row) for row in found["cases"]]),
        f"<p><small>{LEGEND}</small></p>",
        *_figures(found),
    ]
    if found["warnings"]:
        parts += ["<h2>Notes</h2>", _list(found["warnings"])]
    if (numerics := found["numerics"]) is not None:
        rows = [[str(one["tokens"]), f"{one['mean']:.5f}", f"{one['max']:.5f}"] for one in numerics["by_length"]]
        parts += [
            f"<h2>Served p against float32 ({escape(numerics['model'])})</h2>",
            _table(("tokens of context", "mean TV", "largest"), rows),
        ]
    parts += [
        "<h2>Before sampling</h2>",
        _list(plans(found)),
        "<h2>Prompts</h2>",
        _list(found["prompts"]),
    ]
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n' + "\n".join(parts) + "\n</body></html>\n"


def _figures(found: dict[str, Any]) -> list[str]:
    """The figures as they are beside the Markdown, within the page."""
    with tempfile.TemporaryDirectory() as folder:
        pictures = [(Path(folder) / name).read_text() for name in draw(found, Path(folder))]
    return [f"<figure>{picture[picture.index('<svg') :]}</figure>" for picture in pictures]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], bad: Sequence[bool] = ()) -> str:
    lines = ["<table><tr>" + "".join(f"<th>{escape(name)}</th>" for name in header) + "</tr>"]
    for number, row in enumerate(rows):
        mark = ' class="bad"' if number < len(bad) and bad[number] else ""
        lines.append(f"<tr{mark}>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>")
    return "\n".join(lines) + "</table>"


def _list(items: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"
