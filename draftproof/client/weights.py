"""Weights updates as the SDK sends them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from draftproof.errors import InvalidArgumentError
from draftproof.v1 import orchestrator_pb2, weights_pb2
from draftproof.wire.weights import announced, frames

Running = Literal["finish", "restart"]
Weights = str | os.PathLike[str] | bytes
"""A path, or the bytes of a safetensors file."""

_RUNNING = {
    "finish": weights_pb2.RUNNING_SESSIONS_FINISH,
    "restart": weights_pb2.RUNNING_SESSIONS_RESTART,
}


@dataclass(frozen=True, slots=True)
class UpdatedServer:
    """One server after an update.

    Attributes:
        name: of the worker; empty where the server was asked directly.
        weights_version: its version now.
        weights_sha256: tells its weights from others, 32 bytes.
        restarted: sessions that went on under the new weights.
        problem: why it still has its old weights; empty where it has the new ones.
    """

    name: str
    weights_version: int
    weights_sha256: bytes
    restarted: int
    problem: str = ""


Upload = Iterator[weights_pb2.UpdateWeightsRequest]


@contextmanager
def uploads(
    target: Weights | None, draft: Weights | None, running: str, version: int | None, upload: bool
) -> Iterator[list[Upload]]:
    """The calls of one update, drafts first: a draft may be ahead of its target, it only drafts worse.

    Raises:
        InvalidArgumentError: nothing to update, or no such way.
    """
    if running not in _RUNNING:
        raise InvalidArgumentError.of("running", "finish or restart", running)
    if target is None and draft is None:
        raise InvalidArgumentError.of("target", "given, or draft", None)
    if version is not None and (isinstance(version, bool) or not 0 < version < 2**64):
        raise InvalidArgumentError.of("version", "an integer in [1, 2^64)", version)
    with tempfile.TemporaryDirectory(prefix="draftproof-weights-") as folder:
        calls = []
        for role, weights in (
            (orchestrator_pb2.WORKER_ROLE_DRAFT, draft),
            (orchestrator_pb2.WORKER_ROLE_TARGET, target),
        ):
            if weights is None:
                continue
            header = weights_pb2.UpdateWeightsHeader(running=_RUNNING[running], role=role, version=version)
            file = None
            if isinstance(weights, bytes):
                file = Path(folder) / f"{role}.safetensors"
                file.write_bytes(weights)
            elif upload:
                file = Path(weights)
            else:
                header.path = str(weights)
            if file is not None:
                header.stream.CopyFrom(announced(file))
            calls.append(frames(header, file))
        yield calls


def updated(response: weights_pb2.UpdateWeightsResponse) -> list[UpdatedServer]:
    """From protobuf."""
    return [
        UpdatedServer(s.name, s.weights_version, s.weights_sha256, s.restarted, s.problem) for s in response.servers
    ]
