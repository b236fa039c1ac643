"""promtool's word on configuration and rules, and that its tests would notice."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import yaml

from tests.unit.deploy.dashboards import left_hand_sides, rules
from tests.unit.deploy.prometheus import FOLDER, promtool


def test_configuration() -> None:
    result = promtool("check", "config", FOLDER / "prometheus.yml")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "2 rule files found" in result.stdout


def test_rules_check() -> None:
    result = promtool("check", "rules", *sorted((FOLDER / "rules").glob("*.yml")))
    assert result.returncode == 0, result.stdout + result.stderr


def test_each_alert_fires_and_does_not() -> None:
    result = promtool("test", "rules", FOLDER / "tests" / "alerts.yml")
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_alert_is_tested_both_ways() -> None:
    cases = yaml.safe_load((FOLDER / "tests" / "alerts.yml").read_text())["tests"]
    checks = [check for case in cases for check in case.get("alert_rule_test", [])]
    for alert in (rule["alert"] for rule in rules("alert")):
        mine = [bool(check.get("exp_alerts")) for check in checks if check["alertname"] == alert]
        assert True in mine, f"{alert} is never seen firing"
        assert False in mine, f"{alert} is never seen silent"


WRONG = {
    "mean of ratios": (
        "recording.yml",
        "sum(rate(draftproof_spec_decode_num_accepted_tokens_total[5m]))\n"
        "          / (sum(rate(draftproof_spec_decode_num_draft_tokens_total[5m])) > 0)",
        "avg(rate(draftproof_spec_decode_num_accepted_tokens_total[5m])"
        " / rate(draftproof_spec_decode_num_draft_tokens_total[5m]))",
    ),
    "division by nothing": (
        "recording.yml",
        "(sum by (job, instance) (rate(draftproof_spec_decode_num_draft_tokens_total[5m])) > 0)",
        "sum by (job, instance) (rate(draftproof_spec_decode_num_draft_tokens_total[5m]))",
    ),
    "a draft that rests": ("alerts.yml", "draft:draftproof_proposals_per_round:ratio_rate5m > 0.5", "vector(1) > 0.5"),
    "a stall that the watchdog missed": (
        "alerts.yml",
        "increase(draftproof_forward_seconds_count[2m]) < 1",
        "vector(2) < 1",
    ),
    "idle targets": (
        "alerts.yml",
        "min_over_time(draftproof_runnable_sessions[2m]) > 0",
        "draftproof_runnable_sessions > -1",
    ),
    "a queue without places": (
        "alerts.yml",
        "clamp_min(sum(draftproof_cluster_waiting_limit), 1) > 0.8",
        "sum(draftproof_cluster_waiting_limit) > 0.6",
    ),
    "rare fallbacks": (
        "alerts.yml",
        "cluster:draftproof_fallbacks_per_request:ratio_rate5m > 0.1",
        "cluster:draftproof_fallbacks_per_request:ratio_rate5m > 0.01",
    ),
    "short restarts": (
        "alerts.yml",
        'up{job=~"draft|target|orchestrator"} < 1\n        for: 2m',
        'up{job=~"draft|target|orchestrator"} < 1\n        for: 30s',
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_rules_are_noticed(wrong: str, tmp_path: Path) -> None:
    file, right, changed = WRONG[wrong]
    shutil.copytree(FOLDER, tmp_path / "prometheus")
    path = tmp_path / "prometheus" / "rules" / file
    text = path.read_text()
    assert text.count(right) == 1
    path.write_text(text.replace(right, changed))
    assert promtool("check", "rules", path).returncode == 0
    assert promtool("test", "rules", tmp_path / "prometheus" / "tests" / "alerts.yml").returncode == 1


def test_alerts_say_what_to_do() -> None:
    for rule in rules("alert"):
        assert rule["alert"].startswith("Draftproof")
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert len(rule["annotations"]["summary"]) > 20
        assert len(rule["annotations"]["description"]) > 80


def test_conditions_compare_with_numbers() -> None:
    """What the live test evaluates: the left-hand sides, which have values whether or not the alert fires."""
    sides = {rule["alert"]: left_hand_sides(rule) for rule in rules("alert")}
    assert sides["DraftproofAcceptanceCollapse"] == [
        "draft:draftproof_acceptance:ratio_rate5m",
        "draft:draftproof_proposals_per_round:ratio_rate5m",
    ]
    assert sides["DraftproofNoProgress"] == [
        "draftproof_watchdog_healthy",
        "min_over_time(draftproof_runnable_sessions[2m])",
        "increase(draftproof_forward_seconds_count[2m])",
    ]
    for found in sides.values():
        assert found
        assert all(side.count("(") == side.count(")") for side in found)
        assert not any(re.search(r"[<>] [\d.]+$", side) for side in found)
