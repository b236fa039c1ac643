"""The architecture page lists every module, in the module's own words."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("modules", ROOT / "docs" / "modules.py")
assert SPEC
assert SPEC.loader
modules = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(modules)


def test_page_is_current() -> None:
    text = modules.PAGE.read_text(encoding="utf-8")
    assert modules.page(text) == text, "docs/architecture.md is stale: run `make docs`"


def test_every_module_says_what_it_is() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for package in modules.PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if "_pb2" not in path.name and not modules.sentence(path)
    ]
    assert silent == []
