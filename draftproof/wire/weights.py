"""A weights update as frames: header, then the bytes of a file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from draftproof.errors import InvalidArgumentError
from draftproof.v1 import weights_pb2

CHUNK_BYTES = 2**20
MAX_CHUNK_BYTES = 4 * 2**20


def announced(file: Path) -> weights_pb2.WeightsStream:
    """Size and digest of a file.

    Raises:
        InvalidArgumentError: it can't be read.
    """
    try:
        with file.open("rb") as source:
            digest = hashlib.file_digest(source, "sha256").digest()
        return weights_pb2.WeightsStream(size=file.stat().st_size, sha256=digest)
    except OSError as error:
        raise InvalidArgumentError.of("weights", "a file that can be read", f"{file}: {error.strerror}") from None


def frames(header: weights_pb2.UpdateWeightsHeader, file: Path | None) -> Iterator[weights_pb2.UpdateWeightsRequest]:
    """The frames of one update.

    Args:
        header: with a path, or the announcement of `file`.
        file: what follows it.
    """
    yield weights_pb2.UpdateWeightsRequest(header=header)
    if file is None:
        return
    with file.open("rb") as source:
        while chunk := source.read(CHUNK_BYTES):
            yield weights_pb2.UpdateWeightsRequest(chunk=chunk)
