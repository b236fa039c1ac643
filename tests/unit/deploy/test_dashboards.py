"""The dashboards: in step with their code, valid for the SDK's types, and linted."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.grafana.source import GRAFANA
from deploy.grafana.source.build import rendered
from docs.metrics import catalogue
from tests.unit.deploy.dashboards import FOLDER, ROOT, committed, filled, panels, queries, rules
from tests.unit.deploy.prometheus import promtool

BOARDS = committed()
PANELS = [pytest.param(panel, id=panel["title"]) for board in BOARDS.values() for panel in panels(board)]
KNOWN = {series: metric.kind for metric in catalogue() for series in metric.series}
NAME = r"\bdraftproof_\w+"
PROVISIONING = ROOT / "deploy" / "grafana" / "provisioning"


def test_files_and_code_are_in_step() -> None:
    files = [*FOLDER.glob("*.json"), *(PROVISIONING / "alerting").iterdir()]
    assert {path: path.read_text() for path in files} == rendered(), "run `make dashboards`"


@pytest.mark.parametrize("name", BOARDS)
def test_json_is_valid_for_the_sdk(name: str) -> None:
    """Read into the SDK's types and written again, nothing is lost or added."""
    register_default_plugins()
    board = Dashboard.from_json(BOARDS[name])
    assert json.loads(JSONEncoder().encode(board)) == BOARDS[name]


def test_what_the_dashboards_are_for() -> None:
    titles = {name: {panel["title"].lower() for panel in panels(board)} for name, board in BOARDS.items()}
    for words in ("acceptance rate", "by position", "given all before", "tokens per target step", "γ in use"):
        assert any(words in title for title in titles["acceptance.json"]), words
    for words in ("by draft", "fallbacks", "refused proposals", "thrown away"):
        assert any(words in title for title in titles["acceptance.json"]), words
    for words in ("first token", "between tokens", "whole requests", "round's time", "queue", "batch occupancy"):
        assert any(words in title for title in titles["latency.json"]), words
    for words in ("kv use", "wire bytes per committed token"):
        assert any(words in title for title in titles["latency.json"]), words


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_dashboard_rules(board: dict[str, Any]) -> None:
    variables = {variable["name"]: variable for variable in board["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    for name in ("job", "instance"):
        assert variables[name]["type"] == "query"
        assert variables[name]["multi"] is variables[name]["includeAll"] is True
        assert variables[name]["allValue"] == ".+"
        assert variables[name]["datasource"]["uid"] == "${datasource}"
    assert board["editable"] is False
    assert board["uid"].startswith("draftproof-")
    assert board["title"].startswith("Draftproof / ")


def test_panels_do_not_overlap() -> None:
    for board in BOARDS.values():
        taken: set[tuple[int, int]] = set()
        for panel in board["panels"]:
            place = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(place.get("x", 0), place.get("x", 0) + place["w"])
                for y in range(place.get("y", 0), place.get("y", 0) + place["h"])
            }
            assert max(x for x, _ in cells) < 24
            assert not cells & taken, panel["title"]
            taken |= cells


@pytest.mark.parametrize("panel", PANELS)
def test_panel_rules(panel: dict[str, Any]) -> None:
    assert problems(panel) == []


def problems(panel: dict[str, Any]) -> list[str]:
    """What is wrong with a panel."""
    found = []
    if not panel.get("title"):
        found.append("no title")
    _, good, rest = panel.get("description", "").partition("\n\nGood: ")
    if not good or len(rest) < 15:
        found.append("does not say what good looks like")
    if not panel["fieldConfig"]["defaults"].get("unit"):
        found.append("no unit")
    if panel["datasource"] != {"type": "prometheus", "uid": "${datasource}"}:
        found.append("datasource not templated")
    if not panel["targets"]:
        found.append("no query")
    for target in panel["targets"]:
        found += query_problems(target["expr"])
        if not target.get("legendFormat"):
            found.append("no legend")
    return found


WRONG_PANELS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no title": lambda panel: panel.pop("title"),
    "does not say what good looks like": lambda panel: panel.pop("description"),
    "no unit": lambda panel: panel["fieldConfig"]["defaults"].pop("unit"),
    "datasource not templated": lambda panel: panel["datasource"].update(uid="draftproof-prometheus"),
    "no query": lambda panel: panel["targets"].clear(),
    "no legend": lambda panel: panel["targets"][0].pop("legendFormat"),
    "a window other than $__rate_interval": lambda panel: panel["targets"][0].update(
        expr=panel["targets"][0]["expr"].replace("$__rate_interval", "5m")
    ),
}


@pytest.mark.parametrize("problem", WRONG_PANELS)
def test_a_wrong_panel_is_noticed(problem: str) -> None:
    panel = copy.deepcopy(next(panels(BOARDS["acceptance.json"])))
    WRONG_PANELS[problem](panel)
    assert problems(panel) == [problem]


def query_problems(expr: str) -> list[str]:
    """What is wrong with a query."""
    found = []
    names = re.findall(NAME, expr)
    selectors = re.findall(rf"{NAME}(\{{[^}}]*\}})?", expr)
    if not names:
        found.append("no metric")
    for name, selector in zip(names, selectors, strict=True):
        if name not in KNOWN:
            found.append(f"unknown metric {name}")
        elif 'job=~"$job"' not in selector or 'instance=~"$instance"' not in selector:
            found.append(f"{name} ignores job or instance")
        rated = re.search(rf"(rate|increase)\({name}\{{", expr)
        if KNOWN.get(name) in ("counter", "histogram") and not rated:
            found.append(f"{name} is a counter and not rated")
        if KNOWN.get(name) == "gauge" and rated:
            found.append(f"{name} is a gauge and rated")
    if len(re.findall(r"\}\[", expr)) != expr.count("[$__rate_interval]"):
        found.append("a window other than $__rate_interval")
    if "histogram_quantile" in expr and not re.search(r"sum by \(le\b", expr):
        found.append("quantile without le")
    return found


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ('rate(draftproof_rounds_total{job=~"$job"}[$__rate_interval])', "ignores job or instance"),
        ('draftproof_rounds_total{job=~"$job", instance=~"$instance"}', "not rated"),
        ('rate(draftproof_rounds_total{job=~"$job", instance=~"$instance"}[5m])', "a window other"),
        ('rate(draftproof_round_total{job=~"$job", instance=~"$instance"}[$__rate_interval])', "unknown metric"),
        ('rate(draftproof_kv_slots{job=~"$job", instance=~"$instance"}[$__rate_interval])', "is a gauge"),
        ("vector(1)", "no metric"),
        (
            'histogram_quantile(0.5, rate(draftproof_gamma_bucket{job=~"$job", instance=~"$instance"}'
            "[$__rate_interval]))",
            "without le",
        ),
    ],
)
def test_the_lint_notices(wrong: str, problem: str) -> None:
    assert [found for found in query_problems(wrong) if problem in found]


def test_rules_use_known_metrics_alone() -> None:
    recorded = {rule["record"] for rule in rules("record")}
    for rule in rules("record") + rules("alert"):
        expr = re.sub(r"\b\w+:draftproof_\w+:\w+", lambda m: "" if m[0] in recorded else m[0] + "?", rule["expr"])
        assert "?" not in expr, f"a recorded series that no rule records: {rule}"
        assert set(re.findall(NAME, expr)) <= KNOWN.keys()


def test_prometheus_parses_every_query(tmp_path: Path) -> None:
    """Each query as a recording rule, which promtool can check."""
    entries = [
        {"record": "panel", "expr": filled(expr), "labels": {"n": str(i)}} for i, (_, expr) in enumerate(queries())
    ]
    path = tmp_path / "panels.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": entries}]}))
    result = promtool("check", "rules", path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{len(entries)} rules found" in result.stdout


def test_provisioning() -> None:
    source = yaml.safe_load((PROVISIONING / "datasources" / "prometheus.yml").read_text())["datasources"][0]
    scrape = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())["global"]
    assert source["type"] == "prometheus"
    assert source["editable"] is False
    assert source["jsonData"]["timeInterval"] == scrape["scrape_interval"]
    provider = yaml.safe_load((PROVISIONING / "dashboards" / "draftproof.yml").read_text())["providers"][0]
    assert provider["allowUiUpdates"] is False


def test_one_release_of_grafana() -> None:
    """The image, the charts of the pictures and the SDK's line, which is 0.0.x for Grafana 12 and later."""
    pins = (ROOT / "constraints.txt").read_text()
    assert re.search(r"^grafana_foundation_sdk==0\.0\.\d+$", pins, re.MULTILINE)
    assert int(GRAFANA.split(".")[0]) >= 12
    npm = json.loads((ROOT / "deploy" / "grafana" / "pictures" / "package.json").read_text())["dependencies"]
    assert {version for name, version in npm.items() if name.startswith("@grafana/")} == {GRAFANA}
    compose = ROOT / "docker-compose.yml"
    if compose.exists():
        image = yaml.safe_load(compose.read_text())["services"]["grafana"]["image"]
        assert image == f"grafana/grafana:{GRAFANA}"
