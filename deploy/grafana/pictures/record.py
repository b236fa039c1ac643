"""Puts a changing load on a real local cluster and keeps what every panel would have shown."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.integration.prometheus.live import Live, live
from tests.unit.deploy.dashboards import committed, panels

PHASES = ((2, 35.0), (5, 40.0), (14, 30.0), (4, 35.0))
"""Requests at once, and for how many seconds."""
LOSS = 4
"""The poor draft is killed where this phase begins."""
VARIABLES = {"$__rate_interval": "15s", "$job": ".+", "$instance": ".+"}


def record(folder: Path) -> dict[str, dict[str, Any]]:
    """Series of every panel, by dashboard."""
    with live(folder) as cluster:
        names = _names(cluster)
        began = time.time()
        for at_once, seconds in PHASES:
            if at_once == LOSS:
                cluster.processes[2].kill()
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                cluster.load(2 * at_once, at_once=at_once)
        cluster.settle()
        ended = time.time() - 3.0
        return {
            name: {
                "from": began,
                "to": ended,
                "series": {
                    panel["title"]: list(_series(cluster, panel, began, ended, names)) for panel in panels(board)
                },
            }
            for name, board in committed().items()
        }


def _series(
    cluster: Live, panel: dict[str, Any], began: float, ended: float, names: dict[str, str]
) -> Iterator[dict[str, Any]]:
    for target in panel["targets"]:
        expr = target["expr"]
        for variable, value in VARIABLES.items():
            expr = expr.replace(variable, value)
        lines = [
            {
                "legend": _legend(target["legendFormat"], found["metric"], names),
                "points": [[float(at), _number(value)] for at, value in found["values"]],
            }
            for found in cluster.query_range(expr, began, ended)
        ]
        yield from sorted(
            lines,
            key=lambda line: (
                (len(line["legend"]), line["legend"]) if panel["type"] == "bargauge" else (0, line["legend"])
            ),
        )


def _legend(template: str, labels: dict[str, str], names: dict[str, str]) -> str:
    """The legend, with a cluster's names in place of this machine's free ports."""
    text = re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda match: labels.get(match[1], ""), template)
    for address, name in names.items():
        text = text.replace(address, name)
    return text


def _names(cluster: Live) -> dict[str, str]:
    names, counts = {}, {"draft": 0, "target": 0, "orchestrator": 0}
    for found in sorted(cluster.query("up"), key=lambda s: cluster.order(s["metric"].get("worker", ""))):
        role = found["metric"]["job"]
        name = f"{role}-{counts[role]}" if role != "orchestrator" else role
        counts[role] += 1
        names[found["metric"]["instance"]] = name
        if worker := found["metric"].get("worker"):
            names[worker] = name
    return names


def _number(text: str) -> float | None:
    value = float(text)
    return value if value == value else None


def write(recorded: dict[str, dict[str, Any]], site: Path) -> None:
    """Puts dashboards and data where the page looks for them."""
    for name, board in committed().items():
        (site / name).write_text(json.dumps(board))
        (site / f"recorded-{name}").write_text(json.dumps(recorded[name]))
