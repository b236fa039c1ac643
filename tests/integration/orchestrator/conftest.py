"""Fixtures of the cluster in one process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
import structlog

from tests.integration.orchestrator.harness import Cluster, Divider, Setting

Build = Callable[..., Awaitable[Cluster]]


@pytest.fixture(autouse=True)
def quiet_logs() -> Iterator[None]:
    """Rendering tracebacks for a terminal costs a second each."""
    with structlog.testing.capture_logs():
        yield


@pytest.fixture
async def cluster() -> AsyncIterator[Build]:
    """Builds clusters that end with the test."""
    built: list[Cluster] = []

    async def build(ready: bool = True, **changes: Any) -> Cluster:
        made = Cluster(Setting(**changes))
        built.append(made)
        await made.start(ready)
        return made

    yield build
    for made in built:
        await made.close()


@pytest.fixture
async def divider() -> AsyncIterator[Divider]:
    """A relay between draft and target."""
    relay = Divider()
    yield relay
    await relay.close()
