"""Links to the targets that an orchestrator names, and the servicer it calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass

import grpc.aio
import structlog

from draft_service.link import TargetLink
from draftproof.errors import ConfigError, FingerprintMismatchError, InvalidArgumentError, UnsupportedError
from draftproof.rpc.security import Address
from draftproof.serving.generation import Generator
from draftproof.serving.ports import VerifySession
from draftproof.v1 import draft_pb2, draft_pb2_grpc, fingerprint_pb2, target_pb2

log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class _Entry:
    link: TargetLink
    task: asyncio.Task[None] | None = None
    users: int = 0
    used: bool = True


class LinkPool:
    """One link per target, made when it is first asked for; closed when nobody has used it for a while.

    Args:
        make: makes a link to an address.
        idle: seconds without a user after which a link is closed; at most twice as long.
    """

    def __init__(self, make: Callable[[str], TargetLink], idle: float = 60.0) -> None:
        self._make = make
        self._idle = idle
        self._entries: dict[str, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    @asynccontextmanager
    async def use(self, address: str) -> AsyncIterator[TargetLink]:
        """The link to a target, connected.

        Raises:
            ConfigError: dialling it isn't allowed (plaintext beyond loopback).
            RequestError: the target can't be reached, or doesn't fit.
        """
        entry = self._entries.get(address)
        if entry is None:
            entry = self._entries[address] = _Entry(self._make(address))
            entry.task = asyncio.create_task(self._tend(address, entry))
        entry.users += 1
        entry.used = True
        try:
            await entry.link.first_up()
            yield entry.link
        finally:
            entry.users -= 1

    async def close(self) -> None:
        """Closes all links."""
        tasks = [entry.task for entry in self._entries.values() if entry.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _tend(self, address: str, entry: _Entry) -> None:
        running = asyncio.create_task(entry.link.run())
        try:
            while not running.done():
                entry.used = entry.users > 0
                await asyncio.wait({running}, timeout=self._idle)
                if not running.done() and not entry.used:
                    return
            running.result()
        except FingerprintMismatchError as error:
            # those who wait see the reason; a later one tries again
            entry.link.refuse(error)
        finally:
            self._entries.pop(address, None)
            running.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await running


class DraftServicer(draft_pb2_grpc.DraftServiceServicer):
    """DraftService: generations against targets chosen by the caller."""

    def __init__(self, generator: Generator, pool: LinkPool) -> None:
        self._generator = generator
        self._pool = pool

    async def Draft(
        self,
        request: draft_pb2.DraftRequest,
        context: grpc.aio.ServicerContext[draft_pb2.DraftRequest, draft_pb2.DraftResponse],
    ) -> AsyncIterator[draft_pb2.DraftResponse]:
        """Streams one continuation."""
        try:
            address = str(Address.parse(request.target, "target"))
            async with (
                self._pool.use(address) as link,
                aclosing(self._generator.run(request.generation, link)) as events,
            ):
                async for event in events:
                    yield draft_pb2.DraftResponse(event=event)
        except ConfigError as error:
            raise InvalidArgumentError(error.message, metadata={"field": "target"}) from None


class NoTarget:
    """The port of a draft server that has no target of its own."""

    max_gamma = 0
    max_unaided = 0
    max_context = 0
    waiting = 0

    @property
    def addresses(self) -> list[str]:
        """None."""
        return []

    def fingerprint(self) -> fingerprint_pb2.Fingerprint:
        """Empty."""
        return fingerprint_pb2.Fingerprint()

    async def open(self, request: target_pb2.OpenSession) -> VerifySession:
        """Refuses.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError("this draft server takes its targets from an orchestrator; send the request there")
