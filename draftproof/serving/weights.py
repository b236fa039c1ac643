"""WeightsService: takes an update in, from disk or from the stream, and hands it to whoever changes the weights."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio

from draftproof.engine.interface import Update
from draftproof.errors import InvalidArgumentError, OverloadedError, ProtocolError, UnsupportedError
from draftproof.serving.model_thread import aside
from draftproof.v1 import orchestrator_pb2, weights_pb2, weights_pb2_grpc
from draftproof.wire.weights import MAX_CHUNK_BYTES

Frames = AsyncIterator[weights_pb2.UpdateWeightsRequest]
Loader = Callable[[Path], Update]
"""Reads and checks weights in whatever thread; raises RequestError."""
Change = Callable[[Update, int | None, bool], Awaitable[weights_pb2.UpdatedServer]]
"""Takes weights over: the version wanted, and whether running sessions restart."""


def unsupported(path: Path) -> Update:
    """The loader of a server that has none.

    Raises:
        UnsupportedError: always.
    """
    raise UnsupportedError("this server has no weights that could be changed")


class WeightsServicer(weights_pb2_grpc.WeightsServiceServicer):
    """WeightsService of one draft or target.

    Args:
        role: what this server is.
        load: reads weights beside the running ones.
        change: takes them over.
        allowed: whether the server was started with --allow-weight-updates.
    """

    def __init__(self, role: orchestrator_pb2.WorkerRole, load: Loader, change: Change, *, allowed: bool) -> None:
        self._role = role
        self._load = load
        self._change = change
        self._allowed = allowed
        self._busy = asyncio.Lock()

    async def UpdateWeights(
        self,
        request_iterator: Frames,
        context: grpc.aio.ServicerContext[weights_pb2.UpdateWeightsRequest, weights_pb2.UpdateWeightsResponse],
    ) -> weights_pb2.UpdateWeightsResponse:
        """Loads, checks, takes over."""
        header = await read_header(request_iterator, allowed=self._allowed)
        if header.role not in (orchestrator_pb2.WORKER_ROLE_UNSPECIFIED, self._role):
            raise InvalidArgumentError.of("role", "that of this server", header.role)
        if self._busy.locked():
            raise OverloadedError("another weights update is under way", retry_delay=1.0)
        async with self._busy:
            async with received(header, request_iterator) as (path, _):
                update = await aside(self._load, path)
            version = header.version if header.HasField("version") else None
            restart = header.running == weights_pb2.RUNNING_SESSIONS_RESTART
            return weights_pb2.UpdateWeightsResponse(servers=[await self._change(update, version, restart)])


def next_version(present: int, wanted: int | None) -> int:
    """The version after an update.

    Raises:
        InvalidArgumentError: the wanted one is not ahead of the present one.
    """
    if wanted is not None and wanted <= present:
        raise InvalidArgumentError.of("version", f"more than the present one ({present})", wanted)
    return present + 1 if wanted is None else wanted


async def read_header(frames: Frames, *, allowed: bool) -> weights_pb2.UpdateWeightsHeader:
    """The first frame, checked.

    Raises:
        RequestError: refused.
    """
    if not allowed:
        raise UnsupportedError(
            "this server was started without --allow-weight-updates", metadata={"setting": "allow_weight_updates"}
        )
    try:
        first = await anext(frames)
    except StopAsyncIteration:
        raise ProtocolError("a weights update begins with its header") from None
    if first.WhichOneof("frame") != "header":
        raise ProtocolError("a weights update begins with its header")
    header = first.header
    source = header.WhichOneof("source")
    if source is None or (source == "path" and not header.path):
        raise InvalidArgumentError.of("source", "a path or a stream", None)
    if source == "stream" and (header.stream.size < 1 or len(header.stream.sha256) != 32):
        raise InvalidArgumentError.of("stream", "announced with its size and the 32 bytes of its SHA-256", None)
    if header.running == weights_pb2.RUNNING_SESSIONS_UNSPECIFIED:
        raise InvalidArgumentError.of("running", "finish or restart", None)
    return header


@asynccontextmanager
async def received(header: weights_pb2.UpdateWeightsHeader, frames: Frames) -> AsyncIterator[tuple[Path, Path | None]]:
    """Where the weights are, and the file of the stream if that is what they are; it is gone afterwards.

    Raises:
        InvalidArgumentError: the path isn't there, or the stream isn't what was announced.
        OverloadedError: the disk doesn't hold it.
    """
    if header.WhichOneof("source") == "path":
        yield Path(header.path), None
        return
    with tempfile.TemporaryDirectory(prefix="draftproof-weights-") as folder:
        free = shutil.disk_usage(folder).free
        if header.stream.size > free:
            raise OverloadedError(
                f"the disk has {free >> 20} MiB free, the weights take {header.stream.size >> 20}",
                metadata={"setting": "disk", "limit": str(free)},
            )
        file = Path(folder) / "model.safetensors"
        await _spool(header.stream, frames, file)
        yield file, file


async def _spool(stream: weights_pb2.WeightsStream, frames: Frames, file: Path) -> None:
    digest, size = hashlib.sha256(), 0
    with file.open("wb") as sink:
        async for frame in frames:
            if frame.WhichOneof("frame") != "chunk":
                raise ProtocolError("after its header a weights update holds chunks alone")
            size += len(frame.chunk)
            if len(frame.chunk) > MAX_CHUNK_BYTES or size > stream.size:
                raise InvalidArgumentError.of(
                    "chunk", f"at most {MAX_CHUNK_BYTES} bytes, {stream.size} in all", f"{len(frame.chunk)}, {size}"
                )
            digest.update(frame.chunk)
            await asyncio.to_thread(sink.write, frame.chunk)
    if size != stream.size:
        raise InvalidArgumentError.of("stream", f"{stream.size} bytes long, as announced", size)
    if digest.digest() != stream.sha256:
        raise InvalidArgumentError.of("stream", "of the SHA-256 that was announced", digest.hexdigest())
