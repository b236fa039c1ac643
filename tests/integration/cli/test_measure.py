"""`draftproof plan --measure` against a cluster whose costs are known."""

from __future__ import annotations

import pytest

from bench.fake_cluster import FakeCluster, Speed
from bench.plan import TEMPERATURE, TEXTS
from draftproof.cli.measure import measure, metrics_of
from draftproof.errors import UnavailableError


def test_costs_of_a_cluster_whose_passes_sleep() -> None:
    target, draft = Speed(delay=0.005, token_delay=0.002), Speed(delay=0.002)
    with FakeCluster([target], [draft]) as cluster:
        found = measure(cluster.orchestrator.address, TEMPERATURE, TEXTS, ignore_eos=True)
    # what a busy machine adds is bounded loosely; the sleeps are the least
    assert 0.003 < found["pass_base"] < 0.1
    assert 0.001 < found["pass_token"] < 0.02
    assert 0.002 < found["draft_step"] < 0.1
    # the draft has the target's own table
    assert len(found["acceptance"]) == 6
    assert min(found["acceptance"]) > 0.95


def test_nobody_there() -> None:
    with pytest.raises(UnavailableError):
        metrics_of("127.0.0.1:1")
