"""The GRPO example, on a tiny model: it learns with the log-probabilities it is told, and its arms agree."""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from draftproof.testing.tiny import make_tiny_model

SCRIPT = Path(__file__).parents[3] / "examples" / "grpo.py"


@pytest.mark.slow
@pytest.mark.timeout(1300)
def test_both_arms_learn_from_exact_log_probabilities(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "tiny")
    out = tmp_path / "steps.json"
    command = [sys.executable, str(SCRIPT), "--model", str(model), "--runs", "1", "--steps", "10", "--rate", "1e-2"]
    done = subprocess.run([*command, "--out", str(out)], capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr
    for arm, (steps,) in json.loads(out.read_text()).items():
        assert max(step["drift"] for step in steps) < 1e-4
        assert (sum(step["drafted"] for step in steps) > 0) == (arm == "speculative")
        assert steps[-1]["reward"] > 2 * steps[0]["reward"]
    assert "difference" in done.stdout


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def until(condition: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def runs(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_its_servers_do_not_outlive_it(tmp_path: Path, number: signal.Signals) -> None:
    model = make_tiny_model(tmp_path / "tiny")
    log = tmp_path / "steps"
    with log.open("w") as out:
        example = subprocess.Popen([sys.executable, str(SCRIPT), "--model", str(model)], stdout=out, stderr=out)
    try:
        until(lambda: "reward" in log.read_text(), 120)
        servers = children(example.pid)
        assert len(servers) == 2
        os.kill(example.pid, number)
        example.wait(30)
        until(lambda: not any(runs(server) for server in servers), 30)
    finally:
        example.kill()


def test_the_interval_is_of_all_ways_to_deal_the_runs() -> None:
    interval = runpy.run_path(str(SCRIPT))["interval"]
    assert interval([1.0], [3.0]) == (-2.0, 2.0)
    low, high = interval([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    assert (low, high) == pytest.approx((-4 / 3, 4 / 3))
