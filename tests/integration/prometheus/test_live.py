"""A real Prometheus scrapes a real cluster under load: every panel and alert has data, and the numbers are right."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import pytest

from tests.integration.prometheus.live import Live, live
from tests.integration.prometheus.serve import MAX_GAMMA, SLOTS
from tests.unit.deploy.dashboards import filled, left_hand_sides, queries, rules

REQUESTS = 60
PANELS = queries()
SIDES = [(rule["alert"], side) for rule in rules("alert") for side in left_hand_sides(rule)]
RECORDED = [rule["record"] for rule in rules("record")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """The cluster after its load; what it did lies in Prometheus."""
    with live(tmp_path_factory.mktemp("live")) as running:
        running.load(REQUESTS)
        running.settle()
        yield running


def has_data(series: list[dict[str, Any]]) -> bool:
    return any(math.isfinite(float(value)) for one in series for _, value in one["values"])


@pytest.mark.parametrize(("where", "expr"), PANELS, ids=[where for where, _ in PANELS])
def test_every_panel_has_data(cluster: Live, where: str, expr: str) -> None:
    assert has_data(cluster.query_range(filled(expr), cluster.began, time.time())), where


@pytest.mark.parametrize(("alert", "side"), SIDES, ids=[f"{alert}: {side}" for alert, side in SIDES])
def test_every_condition_of_an_alert_has_data(cluster: Live, alert: str, side: str) -> None:
    assert has_data(cluster.query_range(side, cluster.began, time.time())), alert


@pytest.mark.parametrize("name", RECORDED)
def test_every_recorded_series_has_data(cluster: Live, name: str) -> None:
    assert has_data(cluster.query_range(name, cluster.began, time.time()))


def test_no_alert_fires(cluster: Live) -> None:
    assert cluster.query('ALERTS{alertstate="firing"}') == []


def test_workers_are_discovered(cluster: Live) -> None:
    jobs = sorted(series["metric"]["job"] for series in cluster.query("up == 1"))
    assert jobs == ["draft", "draft", "orchestrator", "target"]
    names = {series["metric"].get("worker") for series in cluster.query('up{job="draft"}')}
    assert names == {f"draft@{address}" for address in cluster.drafts}
    info = cluster.query("draftproof_build_info")
    assert sorted(series["metric"]["role"] for series in info) == ["draft", "draft", "orchestrator", "target"]
    assert len({series["metric"].get("weights") for series in info}) == 4


def test_the_load_was_a_mixed_one(cluster: Live) -> None:
    """Both drafts, rounds without one, and long blocks: else the panels above prove little."""
    assert len(cluster.completions) == REQUESTS
    used = cluster.query("sum by (draft) (draftproof_cluster_rounds_total) > 0")
    assert {series["metric"]["draft"] for series in used} == {"none"} | {f"draft@{a}" for a in cluster.drafts}
    assert any(len(stats.drafted_per_position) > 10 for stats in cluster.stats)


def test_sums_equal_what_the_sdk_reports(cluster: Live) -> None:
    stats = cluster.stats
    spec, all_pairs = "draftproof_spec_decode", "draftproof_cluster"
    drafted, accepted = sum(s.drafted for s in stats), sum(s.accepted for s in stats)
    rounds, committed = sum(s.rounds for s in stats), sum(s.committed for s in stats)
    assert drafted > accepted > 100
    assert cluster.value(f"sum({spec}_num_draft_tokens_total)") == drafted
    assert cluster.value(f"sum({spec}_num_accepted_tokens_total)") == accepted
    assert cluster.value("sum(draftproof_rounds_total)") == rounds
    assert cluster.value("sum(draftproof_committed_tokens_total)") == committed
    assert cluster.value(f"sum({all_pairs}_draft_tokens_total)") == drafted
    assert cluster.value(f"sum({all_pairs}_accepted_tokens_total)") == accepted
    assert cluster.value(f"sum({all_pairs}_rounds_total)") == rounds
    assert cluster.value(f"sum({all_pairs}_committed_tokens_total)") == committed
    for source, count in (
        ("accepted", accepted),
        ("resampled", sum(s.resampled for s in stats)),
        ("bonus", sum(s.bonus for s in stats)),
        ("target", sum(s.target_only for s in stats)),
    ):
        assert cluster.value(f'sum(draftproof_committed_tokens_total{{source="{source}"}})') == count
    expected = sum(s.expected_accepted or 0.0 for s in stats)
    assert cluster.value(f"sum({spec}_expected_accepted_tokens_total)") == pytest.approx(expected, rel=1e-9)
    assert cluster.value(f'sum({all_pairs}_requests_total{{outcome="OK"}})') == REQUESTS
    assert cluster.value(f"sum({all_pairs}_time_to_first_token_seconds_count)") == REQUESTS
    sent = cluster.value('sum(draftproof_wire_bytes_total{direction="sent"})')
    assert 0 < sent <= sum(s.proposal_bytes for s in stats)


def test_positions_equal_what_the_sdk_reports(cluster: Live) -> None:
    for what in ("draft", "accepted"):
        attribute = "drafted_per_position" if what == "draft" else "accepted_per_position"
        sums = [sum(column) for column in zip_longest(*(getattr(s, attribute) for s in cluster.stats), fillvalue=0)]
        series = cluster.query(f"draftproof_spec_decode_num_{what}_tokens_per_pos_total")
        exported = {int(s["metric"]["position"]): float(s["value"][1]) for s in series}
        assert exported == dict(enumerate(sums + [0] * (MAX_GAMMA - len(sums))))


def test_rates_equal_what_the_sdk_reports(cluster: Live) -> None:
    """Rates of counters that were scraped at 0 first: extrapolation cancels in the quotient of sums."""
    stats = cluster.stats
    rate = sum(s.accepted for s in stats) / sum(s.drafted for s in stats)
    assert cluster.value("cluster:draftproof_acceptance:ratio_rate5m") == pytest.approx(rate, rel=1e-9)
    assert cluster.value("instance:draftproof_acceptance:ratio_rate5m") == pytest.approx(rate, rel=1e-9)
    steps = sum(s.committed for s in stats) / sum(s.rounds for s in stats)
    assert cluster.value("cluster:draftproof_tokens_per_step:ratio_rate5m") == pytest.approx(steps, rel=1e-9)
    pooled = cluster.value(
        'sum(rate(draftproof_cluster_accepted_tokens_total{draft!="none"}[5m]))'
        ' / sum(rate(draftproof_cluster_draft_tokens_total{draft!="none"}[5m]))'
    )
    assert pooled == pytest.approx(rate, rel=1e-9)


def test_the_good_draft_shows(cluster: Live) -> None:
    """Per-draft comparison: the order by tokens per target step is that of the drafts' quality."""
    good, poor = (
        cluster.value(
            f'sum(draftproof_cluster_committed_tokens_total{{draft="draft@{address}"}})'
            f' / sum(draftproof_cluster_rounds_total{{draft="draft@{address}"}})'
        )
        for address in cluster.drafts
    )
    assert good > poor > 0.99


def test_gauges_in_their_ranges(cluster: Live) -> None:
    end = time.time()
    for ratio in (
        "draftproof_kv_cached_tokens / draftproof_kv_capacity_tokens",
        "draftproof_active_sessions / draftproof_kv_slots",
    ):
        (series,) = cluster.query_range(ratio, cluster.began, end)
        values = [float(value) for _, value in series["values"]]
        assert 0 < max(values) <= 1
        assert values[-1] == 0  # all sessions are over, their slots are free
    assert cluster.value("draftproof_kv_slots") == SLOTS
    assert cluster.value("sum(draftproof_metrics_errors_total)") == 0
    assert cluster.value("sum(draftproof_target_links)") == 2
