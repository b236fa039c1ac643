"""What `draftproof top` shows of what an orchestrator says."""

from __future__ import annotations

import io
from typing import Any

from google.protobuf.duration_pb2 import Duration
from rich.console import Console

from draftproof.cli.top import Look, page
from draftproof.v1 import fingerprint_pb2, orchestrator_pb2


def look(at: float, workers: tuple[orchestrator_pb2.Worker, ...] = (), **sums: Any) -> Look:
    return Look(at, list(workers), orchestrator_pb2.StatsResponse(**sums))


def shown(now: Look, before: Look | None = None) -> str:
    console = Console(file=io.StringIO(), width=160)
    console.print(page(now, before))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_without_an_earlier_look_the_figures_are_of_the_whole_time():
    text = shown(look(5.0, committed=300, rounds=100, drafted=400, accepted=200, uptime=Duration(seconds=10)))
    assert "30.0 tokens/s · acceptance 50% · 3.00 tokens per target step" in text


def test_with_an_earlier_look_they_are_of_the_time_between():
    before = look(5.0, committed=300, rounds=100, drafted=400, accepted=200)
    now = look(7.0, committed=340, rounds=110, drafted=440, accepted=230, running=2, waiting=1, finished=3)
    assert "2 running, 1 waiting, 3 finished · 20.0 tokens/s · acceptance 75% · 4.00 tokens per target step" in shown(
        now, before
    )


def test_nothing_is_divided_by_nothing():
    assert "0.0 tokens/s · nothing drafted · no rounds" in shown(look(1.0), look(0.0))


def test_a_new_orchestrator_starts_from_zero():
    before = look(5.0, committed=300, rounds=100)
    assert "2.0 tokens/s" in shown(look(7.0, committed=4, rounds=2), before)


def test_fallbacks_and_failures_by_reason():
    text = shown(look(1.0, fallbacks={"draft_lost": 2}, failed={"OVERLOADED": 1}))
    assert "fallbacks: draft_lost 2" in text
    assert "failed: OVERLOADED 1" in text


def test_a_worker_on_a_line_with_its_problem():
    worker = orchestrator_pb2.Worker(
        name="target-0",
        state=orchestrator_pb2.WORKER_STATE_SUSPECT,
        sessions=3,
        slots=8,
        waiting=1,
        restarts=2,
        address="127.0.0.1:7600",
        fingerprint=fingerprint_pb2.Fingerprint(model="big"),
        problem="says NOT_SERVING [sic]",
    )
    line = next(line for line in shown(look(1.0, (worker,))).splitlines() if "target-0" in line)
    assert line.split() == [
        "target-0",
        "suspect",
        "3/8",
        "1",
        "2",
        "127.0.0.1:7600",
        "big",
        "says",
        "NOT_SERVING",
        "[sic]",
    ]
