"""Links to the targets that an orchestrator names, and the servicer it calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress

import grpc.aio
import structlog

from draft_service.link import TargetLink
from draftproof.errors import ConfigError, FingerprintMismatchError, InvalidArgumentError, UnsupportedError
from draftproof.rpc.security import Address
from draftproof.serving.generation import Generator
from draftproof.serving.ports import VerifySession
from draftproof.v1 import draft_pb2, draft_pb2_grpc, fingerprint_pb2, target_pb2

log = structlog.get_logger(__name__)


class LinkPool:
    """One link per target, made when it is first asked for; closed when it has been without a session for a while.

    Args:
        make: makes a link to an address.
        idle: seconds without a session after which a link is closed.
    """

    def __init__(self, make: Callable[[str], TargetLink], idle: float = 60.0) -> None:
        self._make = make
        self._idle = idle
        self._links: dict[str, tuple[TargetLink, asyncio.Task[None]]] = {}

    def get(self, address: str) -> TargetLink:
        """The link to a target.

        Raises:
            ConfigError: dialling it isn't allowed (plaintext beyond loopback).
        """
        entry = self._links.get(address)
        if entry is None:
            link = self._make(address)
            entry = self._links[address] = (link, asyncio.create_task(self._tend(address, link)))
        return entry[0]

    async def close(self) -> None:
        """Closes all links."""
        tasks = [task for _, task in self._links.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _tend(self, address: str, link: TargetLink) -> None:
        running = asyncio.create_task(link.run())
        try:
            while not running.done():
                await asyncio.wait({running}, timeout=self._idle)
                if not running.done() and link.is_idle:
                    return
            running.result()
        except FingerprintMismatchError as error:
            # sessions that wait see the reason; a later one tries again
            link.refuse(error)
        finally:
            self._links.pop(address, None)
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
            link = self._pool.get(str(Address.parse(request.target, "target")))
        except ConfigError as error:
            raise InvalidArgumentError(error.message, metadata={"field": "target"}) from None
        async with aclosing(self._generator.run(request.generation, link)) as events:
            async for event in events:
                yield draft_pb2.DraftResponse(event=event)


class NoTarget:
    """The port of a draft server that has no target of its own."""

    max_gamma = 0
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
