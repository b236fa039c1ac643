"""Fixtures of the running services."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.integration.services.harness import Kit, Proxy


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
