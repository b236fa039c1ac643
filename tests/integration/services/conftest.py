"""Fixtures of the running services."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import structlog

from tests.integration.services.harness import Kit, Proxy


@pytest.fixture(autouse=True)
def quiet_logs() -> Iterator[None]:
    """Rendering tracebacks for a terminal costs a second each."""
    with structlog.testing.capture_logs():
        yield


@pytest.fixture
async def kit() -> AsyncIterator[Kit]:
    """Builds services that end with the test."""
    built = Kit()
    yield built
    await built.close()


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    """A TCP relay for the link between the services."""
    relay = Proxy()
    yield relay
    await relay.close()
