"""No token in plaintext between machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftproof.errors import ConfigError
from draftproof.rpc.security import TlsFiles
from orchestrator.mesh import Mesh


def test_a_token_needs_tls_where_plaintext_may_leave_the_machine() -> None:
    with pytest.raises(ConfigError, match="worker_token"):
        Mesh(token="secret", insecure=True)
    Mesh(token="secret")
    Mesh(insecure=True)
    Mesh(token="secret", insecure=True, tls=TlsFiles(ca=Path("ca.pem")))
