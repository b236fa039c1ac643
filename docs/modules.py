"""Writes the module list of architecture.md from the modules' own docstrings: `make docs`."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
PACKAGES = ("draftproof", "draft_service", "target_service")
BEGIN, END = "<!-- modules: begin -->\n", "<!-- modules: end -->\n"


def sentence(path: Path) -> str:
    """First paragraph of a module's docstring, on one line."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(docstring.split("\n\n")[0].split())


def listing() -> str:
    """One table a package, one row a module; an `__init__` speaks for its package."""
    folders = sorted({path.parent for package in PACKAGES for path in (ROOT / package).rglob("__init__.py")})
    folders.sort(key=lambda folder: PACKAGES.index(folder.relative_to(ROOT).parts[0]))
    parts: list[str] = []
    for folder in folders:
        name = ".".join(folder.relative_to(ROOT).parts)
        rows = [
            f"| `{path.stem}` | {sentence(path)} |\n"
            for path in sorted(folder.glob("*.py"))
            if path.stem != "__init__" and not path.stem.endswith(("_pb2", "_pb2_grpc"))
        ]
        table = "\n| module | |\n|---|---|\n" + "".join(rows) if rows else ""
        parts.append(f"\n### {name}\n\n{sentence(folder / '__init__.py')}\n{table}")
    return "".join(parts) + "\n"


def page(text: str) -> str:
    """The page with its module list renewed."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return before + BEGIN + listing() + END + after


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
