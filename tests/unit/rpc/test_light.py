"""What the SDK stands on loads without the heavy libraries."""

from __future__ import annotations

import subprocess
import sys

import pytest

MODULES = [
    "draftproof.rpc.channel",
    "draftproof.rpc.server",
    "draftproof.rpc.status",
    "draftproof.wire.error",
    "draftproof.wire.params",
]


@pytest.mark.parametrize("module", MODULES)
def test_import_is_light(module: str) -> None:
    code = f"import sys, {module}; print(sorted({{'torch', 'ray', 'transformers', 'numpy'}} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
