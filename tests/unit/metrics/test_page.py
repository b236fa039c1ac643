"""docs/metrics.md and the definitions are in step."""

from __future__ import annotations

from docs import metrics


def test_the_page_is_in_step() -> None:
    page = metrics.PAGE.read_text()
    assert page == metrics.renewed(page), "run python docs/metrics.py"


def test_every_metric_says_what_it_means() -> None:
    for metric in metrics.catalogue():
        assert len(metric.help) > 10
        assert metric.help.endswith("."), metric.name
