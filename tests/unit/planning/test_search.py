"""The planner's choices: each is the best of what it looked through, and moves the right way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from draftproof.planning.search import plan
from draftproof.planning.setup import Costs, Link, Setup, encodings

COSTS = Costs(draft_step=0.004, draft_row=0.0001, pass_base=0.038, pass_token=0.00005, overhead=0.001)
SETUP = Setup(costs=COSTS, link=Link(rtt=0.01, bandwidth=1e9), acceptance=(0.75,), gamma=0)


def test_the_best_gamma_is_the_best_of_its_table() -> None:
    found = plan(SETUP, encodings(128_256))
    speeds = [one.forecast.tokens_per_second for one in found.gammas]
    assert speeds.index(max(speeds)) == found.best.setup.gamma > 0
    assert found.best.speed_up == pytest.approx(max(speeds) / found.alone.tokens_per_second)


def test_a_worse_draft_gets_fewer_proposals_and_a_useless_one_none() -> None:
    gammas = [plan(replace(SETUP, acceptance=(a,)), encodings(128_256)).best.setup.gamma for a in (0.9, 0.6, 0.02)]
    assert gammas[0] > gammas[1] > gammas[2] == 0


def test_dense_q_is_for_short_fat_links_alone() -> None:
    lossless = plan(replace(SETUP, link=Link()), encodings(128_256))
    assert lossless.best.setup.encoding.name == "dense"
    assert plan(replace(SETUP, link=Link(bandwidth=2e7)), encodings(128_256)).best.setup.encoding.name != "dense"


def test_more_drafts_only_where_they_are_needed() -> None:
    slow = replace(SETUP, costs=replace(COSTS, draft_step=0.006, draft_row=0.003), streams=16)
    lattice = encodings(128_256)[:1]
    assert plan(replace(SETUP, streams=16), lattice).best.setup.drafts == 1
    assert plan(slow, lattice).best.setup.drafts > 1
    assert plan(slow, lattice, drafts=(1,)).best.setup.drafts == 1
