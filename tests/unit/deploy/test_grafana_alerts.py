"""Grafana's alert rules: all of Prometheus', with the same conditions, fit for Grafana."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.unit.deploy.dashboards import ROOT, rules

PROVISIONING = ROOT / "deploy" / "grafana" / "provisioning"
(GROUP,) = yaml.safe_load((PROVISIONING / "alerting" / "draftproof.yml").read_text())["groups"]
PROMETHEUS = {alert["alert"]: alert for alert in rules("alert")}
EACH = pytest.mark.parametrize("rule", GROUP["rules"], ids=[rule["title"] for rule in GROUP["rules"]])


def test_all_alerts_are_there() -> None:
    assert [rule["title"] for rule in GROUP["rules"]] == list(PROMETHEUS)
    assert len({rule["uid"] for rule in GROUP["rules"]}) == len(PROMETHEUS)


@EACH
def test_the_condition_is_that_of_prometheus(rule: dict[str, Any]) -> None:
    alert = PROMETHEUS[rule["title"]]
    query, there = rule["data"]
    (source,) = yaml.safe_load((PROVISIONING / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert query["datasourceUid"] == source["uid"]
    assert query["model"]["expr"].split() == alert["expr"].split()
    assert query["model"]["instant"] is True
    assert rule["for"] == alert.get("for", "0s")
    assert rule["labels"] == alert["labels"]
    # that there is a series, not its value: `draftproof_watchdog_healthy < 1` is 0 where it fires
    assert there["datasourceUid"] == "__expr__"
    assert rule["condition"] == there["refId"]
    assert "is_number($A)" in there["model"]["expression"]
    assert rule["noDataState"] == "OK"


@EACH
def test_grafana_takes_it(rule: dict[str, Any]) -> None:
    assert len(rule["uid"]) <= 40
    assert GROUP["interval"].endswith("0s")
    assert all(query["refId"] == query["model"]["refId"] for query in rule["data"])
    for text in rule["annotations"].values():
        assert "$value " not in text
        assert "$value}" not in text
        assert "${" not in text  # taken for an environment variable


def test_values_are_shown() -> None:
    texts = [rule["annotations"]["description"] for rule in GROUP["rules"]]
    assert sum("$values.A.Value |" in text for text in texts) == 2


def test_every_alert_is_listed_once() -> None:
    """Grafana would list Prometheus' own rules beside these."""
    (source,) = yaml.safe_load((PROVISIONING / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert source["jsonData"]["manageAlerts"] is False
