"""Options that can't be right are refused before anything heavy is loaded."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

CALLS = {
    "target_service": (
        ["--dtype", "int3"],
        ["--host", "0.0.0.0"],
        ["--tls-cert", "nowhere.pem", "--tls-key", "nowhere.key"],
        ["--token", "two words"],
    ),
    "draft_service": (
        ["--dtype", "int3"],
        ["--drafter", "magic"],
        ["--q-encoding", "morse"],
        ["--target", "192.0.2.1:7600"],
        ["--target-tls-ca", "nowhere.pem"],
        ["--host", "0.0.0.0"],
    ),
    "orchestrator": (
        ["--dtype", "int3"],
        ["--drafter", "magic"],
        ["--q-encoding", "morse"],
        ["--worker-tls-cert", "nowhere.pem"],
        ["--targets", "many"],
        ["--host", "0.0.0.0"],
    ),
}
PROGRAM = """
import importlib, json, sys
sys.path[:0] = [""]
cli = importlib.import_module(sys.argv[1] + ".__main__").cli
found = []
for words in json.loads(sys.argv[2]):
    try:
        cli(["--port", "0", *words])
    except SystemExit as error:
        found.append([error.code, sorted({"torch", "ray", "transformers"} & set(sys.modules))])
print(json.dumps(found))
"""


@pytest.mark.parametrize("service", CALLS)
def test_wrong_options_are_refused_at_once(service: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, service, json.dumps(CALLS[service])],
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [[1, []]] * len(CALLS[service]), done.stderr
    assert done.stderr.count("error: ") == len(CALLS[service])
