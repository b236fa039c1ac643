"""The GRPO example, on a tiny model: it learns with the log-probabilities it is told, and its arms agree."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
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


def test_the_interval_is_of_all_ways_to_deal_the_runs() -> None:
    interval = runpy.run_path(str(SCRIPT))["interval"]
    assert interval([1.0], [3.0]) == (-2.0, 2.0)
    low, high = interval([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    assert (low, high) == pytest.approx((-4 / 3, 4 / 3))
