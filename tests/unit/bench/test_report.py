"""What benches leave behind: tables, JSON that grows by rows, and the page made from it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from bench import batch, gamma, page, peers, plan, plot, stream, verify, wire
from bench.prompts import KINDS, numbered
from bench.report import Table, save

RATIO = {"median": 1.5, "low": 1.4, "high": 1.6}
FIGURES = {"speed": 20.0, "speeds": [19.0, 21.0], "first": [0.1, 0.2], "gap": [0.02, 0.05]}
RUN = {"speed": 100.0, "gamma": 2.0, "acceptance": 0.5}
FOUND: dict[str, list[dict[str, Any]]] = {
    "stream": [
        {
            "drafter": "model", "kind": "chat", "temperature": 0.0, "floor": 1.3, "ratio": RATIO,
            "tokens_per_second": 30.0, "alone_tokens_per_second": 20.0, "gamma": 3.1, "acceptance": 0.6,
            "tokens_per_round": 2.2, "draft_step_ms": 3.0, "target_pass_ms": 30.0, "verify_pass_ms": 33.0,
            "formula": 1.6, "formula_as_measured": 1.5, "pairs": [],
        }
    ],
    "batch": [{"streams": 1, "ratio": RATIO, "scale": RATIO, "gamma": 2.0, "acceptance": 0.5, "with_draft": FIGURES,
               "alone": FIGURES}],
    "peers": [{"kind": "chat", "temperature": 0.0, "speeds": {"Draftproof": [30.0], "other": [20.0]},
               "ratios": {"other": RATIO}}],
    "gamma": [{"draft": "good", "gamma": 3, "goal": 0.9, **RATIO, "runs": [[RUN, RUN]]}],
    "wire": [{"temperature": 1.0, "entries": 64, "bits": 10, "alpha": 0.4, "dense_alpha": 0.41, "positions": 64,
              "bytes": {"49152": 100.0, "151936": 120.0}}],
    "verify": [{"vocabulary": 49_152, "settings": "T = 1", "rule": "block", "q": "lattice", "audited": False, "ms": 9.0,
                "other_ms": 200.0, "share": RATIO, "peak_bytes": 2**24}],
    "plan": [{"workers": "quick draft", "streams": 1, "gamma": 3, "targets": 1, "drafts": 1, "rtt": 0.04, "mbit": 20,
              "speed": 50.0, "forecast": 55.0, "error": 0.1, "simulated": 54.0, "tokens_per_round": 2.0,
              "forecast_tokens_per_round": 2.1, "limit": "distance"}],
}  # fmt: skip
MODULES: dict[str, Any] = {
    "stream": stream,
    "batch": batch,
    "peers": peers,
    "gamma": gamma,
    "plan": plan,
    "wire": wire,
    "verify": verify,
}


def test_tables_align_and_turn_into_markdown() -> None:
    form = Table(("what", "value"), [["a", "10"], ["long name", "2"]])
    assert form.text().splitlines() == ["what       value", "a             10", "long name      2"]
    assert form.markdown().splitlines() == ["| what | value |", "| --- | ---: |", "| a | 10 |", "| long name | 2 |"]


def test_rows_that_were_measured_again_replace_their_like(tmp_path: Path) -> None:
    def run(rows: list[dict[str, Any]], keep: bool = True, quick: bool = False) -> list[dict[str, Any]]:
        args = argparse.Namespace(out=tmp_path / "bench-x.json", keep=keep, quick=quick)
        return save(rows, args, lambda row: row["name"])

    run([{"name": "a", "value": 1}, {"name": "b", "value": 1}])
    assert run([{"name": "a", "value": 2}]) == [{"name": "b", "value": 1}, {"name": "a", "value": 2}]
    run([{"name": "c", "value": 3}], quick=True)
    assert len(json.loads((tmp_path / "bench-x.json").read_text())) == 2
    assert run([{"name": "c", "value": 3}], keep=False) == [{"name": "c", "value": 3}]


@pytest.mark.parametrize("name", FOUND)
def test_the_page_takes_tables_and_figures_from_json(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "PICTURES", tmp_path)
    for draw in ("bars", "lines"):
        real = getattr(plot, draw)
        monkeypatch.setattr(
            MODULES[name], draw, lambda *args, real=real, **kw: real(*args, folder=tmp_path, **kw), raising=False
        )
    (tmp_path / f"bench-{name}.json").write_text(json.dumps(FOUND[name]))
    text = f"before\n<!-- bench: {name} -->\nold\n<!-- end -->\n<!-- bench: other -->\nkept\n<!-- end -->\nafter\n"
    new = page.renew(text, [], tmp_path)
    assert "old" not in new
    assert f"![{name}](pictures/bench-{name}.svg)" in new
    assert (tmp_path / f"bench-{name}.svg").exists()
    assert MODULES[name].page(FOUND[name]) in new
    assert new.startswith("before\n")
    assert new.endswith("<!-- bench: other -->\nkept\n<!-- end -->\nafter\n")
    assert page.renew(text, ["other"], tmp_path) == text


def test_every_bench_of_the_page_exists() -> None:
    names = [match[1] for match in page._PART.findall(page.PAGE.read_text())]
    assert set(MODULES) <= set(names)


def test_prompts_differ() -> None:
    for kind in KINDS:
        assert len(set(KINDS[kind])) == len(KINDS[kind]) >= 12
        assert len({numbered(kind, i) for i in range(100)}) == 100


def test_quantiles() -> None:
    values = [float(i) for i in range(100)]
    assert batch.quantile(values, 0.5) == 50.0
    assert batch.quantile(values, 0.95) == 95.0
    assert batch.quantile([1.0], 0.95) == 1.0
