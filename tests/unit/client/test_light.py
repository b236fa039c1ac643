"""Importing the SDK or the command line costs little and loads no model library."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import draftproof

_HEAVY = ("torch", "transformers", "ray", "numpy", "scipy")
_PROBE = """
import json, sys, time
begin = time.perf_counter()
{code}
print(json.dumps([time.perf_counter() - begin, [m for m in {heavy!r} if m in sys.modules]]))
"""


def _probe(code: str) -> tuple[float, list[str]]:
    program = _PROBE.format(code=code, heavy=_HEAVY)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    seconds, loaded = json.loads(done.stdout)
    return seconds, loaded


@pytest.mark.parametrize(
    ("code", "limit"),
    [
        ("import draftproof", 0.5),
        ("from draftproof import Client, AsyncClient, SamplingParams, TlsFiles, errors", 2.0),
        ("import draftproof.cli.main", 2.0),
    ],
)
def test_imports_are_light(code, limit):
    seconds, loaded = _probe(code)
    assert loaded == []
    # generous: a busy machine; the usual figures are 0.01 s and 0.15 s
    assert seconds < limit


def test_the_package_alone_loads_no_grpc():
    program = "import draftproof, sys; print('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout.strip() == "False"


def test_every_public_name_is_there():
    for name in draftproof.__all__:
        assert getattr(draftproof, name) is not None
    assert dir(draftproof) == sorted(draftproof.__all__)
    assert issubclass(draftproof.errors.OverloadedError, draftproof.DraftproofError)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nonsense"):
        _ = draftproof.nonsense
