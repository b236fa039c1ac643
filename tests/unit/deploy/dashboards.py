"""The committed dashboards, their panels and queries."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "grafana" / "dashboards"
RULES = ROOT / "deploy" / "prometheus" / "rules"
VARIABLES = {"$__rate_interval": "30s", "$job": ".+", "$instance": ".+"}


def committed() -> dict[str, dict[str, Any]]:
    """Dashboards by file name."""
    return {path.name: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


def panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All panels but rows."""
    for panel in board["panels"]:
        if panel["type"] == "row":
            yield from panels(panel)
        else:
            yield panel


def queries() -> list[tuple[str, str]]:
    """Every query of every panel: where it is, and its PromQL."""
    return [
        (f"{name}: {panel['title']} {query['refId']}", query["expr"])
        for name, board in committed().items()
        for panel in panels(board)
        for query in panel["targets"]
    ]


def filled(expr: str) -> str:
    """PromQL with Grafana's variables filled in."""
    for variable, value in VARIABLES.items():
        expr = expr.replace(variable, value)
    assert "$" not in expr, expr
    return expr


def rules(kind: str) -> list[dict[str, Any]]:
    """All rules of a kind: alert or record."""
    files = [yaml.safe_load(path.read_text()) for path in sorted(RULES.glob("*.yml"))]
    return [rule for file in files for group in file["groups"] for rule in group["rules"] if kind in rule]


def left_hand_sides(alert: dict[str, Any]) -> list[str]:
    """What an alert compares with numbers, one by one."""
    parts = re.split(r"\s(?:<|>|==)\s[\d.]+(?=\s|$)", alert["expr"] + " ")
    sides = [re.sub(r"^[\s)]*(and|or|unless)?\s*", "", part).strip() for part in parts]
    # a parenthesis around a whole condition opens with its first part and closes after its last
    sides = [side[1:].strip() if side.count("(") > side.count(")") else side for side in sides]
    return [side for side in sides if side.strip(") \n")]
