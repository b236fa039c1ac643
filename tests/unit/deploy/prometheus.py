"""Prometheus' programs, where they are installed or unpacked by `make prometheus`."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
UNPACKED = ROOT / ".cache" / "prometheus" / "usr" / "bin"
FOLDER = ROOT / "deploy" / "prometheus"


def program(name: str) -> str:
    """Path of prometheus or promtool; skips the test where there is none."""
    found = shutil.which(name) or shutil.which(name, path=os.fspath(UNPACKED))
    if found is None:
        pytest.skip(f"{name} is not there: `make prometheus` unpacks Debian's package into .cache")
    return found


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs promtool; its output in both cases."""
    command = [program("promtool"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
