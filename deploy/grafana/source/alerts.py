"""Prometheus' alerts as rules that Grafana evaluates and sends; deploy/prometheus holds what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

RULES = Path(__file__).parents[2] / "prometheus" / "rules" / "alerts.yml"
DATASOURCE = "draftproof-prometheus"
"""UID of the provisioned data source."""
INTERVAL = "10s"
"""How often Grafana evaluates; it takes multiples of 10 s alone."""
_HEAD = f"# Made by `make dashboards` from deploy/prometheus/rules/{RULES.name}; don't edit.\n"


def rendered() -> str:
    """Grafana's provisioning file, of all alerts."""
    groups = [
        {
            "orgId": 1,
            "name": group["name"],
            "folder": "Draftproof",
            "interval": INTERVAL,
            "rules": [_rule(alert) for alert in group["rules"]],
        }
        for group in yaml.safe_load(RULES.read_text())["groups"]
    ]
    return _HEAD + yaml.safe_dump({"apiVersion": 1, "groups": groups}, sort_keys=False, width=116)


def _rule(alert: dict[str, Any]) -> dict[str, Any]:
    return {
        "uid": alert["alert"],
        "title": alert["alert"],
        # in Prometheus a series that is there fires, also with the value 0; in Grafana a number other than 0 does
        "condition": "B",
        "data": [
            _query("A", DATASOURCE, expr=" ".join(alert["expr"].split()), instant=True, range=False),
            _query("B", "__expr__", type="math", expression="is_number($A) || is_inf($A)"),
        ],
        "noDataState": "OK",
        "execErrState": "Error",
        "for": alert.get("for", "0s"),
        "missing_series_evals_to_resolve": 1,
        "labels": alert["labels"],
        # Grafana's $value is a text of all values
        "annotations": {
            name: text.replace("$value ", "$values.A.Value ") for name, text in alert["annotations"].items()
        },
    }


def _query(ref: str, datasource: str, **model: Any) -> dict[str, Any]:
    return {
        "refId": ref,
        "relativeTimeRange": {"from": 600, "to": 0},
        "datasourceUid": datasource,
        "model": {"refId": ref, **model},
    }
