"""The generated stubs are what the protos generate, and the protos keep to their style."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROTOS = sorted((ROOT / "protos").glob("draftproof/v1/*.proto"))


def test_stubs_are_fresh(tmp_path: Path) -> None:
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", "protos", *outputs]
    subprocess.run([*command, *(str(proto.relative_to(ROOT)) for proto in PROTOS)], cwd=ROOT, check=True)
    generated = {path.name: path.read_text() for path in (tmp_path / "draftproof/v1").iterdir()}
    committed = {path.name: path.read_text() for path in (ROOT / "draftproof/v1").glob("*_pb2*.py*")}
    assert sorted(committed) == sorted(generated)
    assert [name for name in generated if generated[name] != committed[name]] == []


def test_protos_pass_lint() -> None:
    buf = Path(sys.executable).with_name("buf")
    if not buf.exists():
        pytest.skip("buf is not installed; it comes with the dev requirements")
    result = subprocess.run([buf, "lint"], cwd=ROOT / "protos", capture_output=True, text=True, check=False)
    assert result.stdout + result.stderr == ""
    assert result.returncode == 0


@pytest.mark.parametrize("proto", PROTOS, ids=lambda path: path.stem)
def test_every_field_is_commented(proto: Path) -> None:
    """Lint asks for comments on messages and fields too; this one needs no tool."""
    lines = proto.read_text().splitlines()
    bare = [
        line.strip()
        for before, line in pairwise(lines)
        if line.rstrip().endswith(";") and "=" in line and "syntax" not in line and not before.strip().startswith("//")
    ]
    assert bare == []
