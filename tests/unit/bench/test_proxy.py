"""The proxy delays, limits, keeps the order, and ends what ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bench.proxy import Proxy, Wire

PATIENCE = 20.0
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def through(there: Wire, back: Wire | None = None) -> AsyncIterator[tuple[Streams, Streams]]:
    """Both ends of one connection through the proxy."""
    accepted: asyncio.Queue[Streams] = asyncio.Queue()
    server = await asyncio.start_server(lambda r, w: accepted.put_nowait((r, w)), "127.0.0.1", 0)
    proxy = Proxy("127.0.0.1", server.sockets[0].getsockname()[1], there, back)
    near = await asyncio.open_connection("127.0.0.1", await proxy.start())
    far = await asyncio.wait_for(accepted.get(), PATIENCE)
    try:
        yield near, far
    finally:
        for _, writer in (near, far):
            writer.close()
        await proxy.close()
        server.close()


async def carry(source: Streams, sink: Streams, data: bytes) -> float:
    """Seconds from sending to having all of it."""
    begun = time.monotonic()
    source[1].write(data)
    assert await asyncio.wait_for(sink[0].readexactly(len(data)), PATIENCE) == data
    return time.monotonic() - begun


async def test_each_way_has_its_delay() -> None:
    async with through(Wire(0.05), Wire(0.1)) as (near, far):
        assert 0.05 <= await carry(near, far, b"x") < 0.5
        assert 0.1 <= await carry(far, near, b"x") < 1.0


async def test_delay_is_no_limit_on_what_is_under_way() -> None:
    """A thousand messages of a 50 ms link arrive after 50 ms, not one after another."""
    async with through(Wire(0.05)) as (near, far):
        arriving = asyncio.create_task(far[0].readexactly(1000))
        begun = time.monotonic()
        for _ in range(1000):
            near[1].write(b"x")
            await asyncio.sleep(0)
        await asyncio.wait_for(arriving, PATIENCE)
        assert 0.05 <= time.monotonic() - begun < 5.0


async def test_the_rate_is_kept() -> None:
    async with through(Wire(rate=1e6)) as (near, far):
        assert 0.2 <= await carry(near, far, bytes(200_000)) < 2.0
        assert 0.2 <= await carry(far, near, bytes(200_000)) < 2.0


async def test_connections_share_the_rate() -> None:
    async with through(Wire(rate=1e6)) as (near, far):
        begun = time.monotonic()
        await asyncio.gather(carry(near, far, bytes(100_000)), carry(far, near, bytes(100_000)))
        assert time.monotonic() - begun < 1.0, "each way has its own"


async def test_a_sender_is_held_back() -> None:
    """The link's buffer is bounded: what it can't take stays with the sender."""
    async with through(Wire(rate=1e6)) as (near, _):
        near[1].write(bytes(40_000_000))
        await asyncio.sleep(0.2)
        assert near[1].transport.get_write_buffer_size() > 10_000_000


async def test_jitter_keeps_the_order() -> None:
    data = bytes(range(256)) * 20
    async with through(Wire(0.01, jitter=0.02, seed=3)) as (near, far):
        arriving = asyncio.create_task(far[0].readexactly(len(data)))
        for i in range(0, len(data), 64):
            near[1].write(data[i : i + 64])
            await asyncio.sleep(0.0005)
        assert await asyncio.wait_for(arriving, PATIENCE) == data


async def test_an_end_is_passed_on_and_the_other_way_stays_open() -> None:
    async with through(Wire(0.02)) as (near, far):
        near[1].write(b"last")
        near[1].write_eof()
        assert await asyncio.wait_for(far[0].read(), PATIENCE) == b"last"
        assert await carry(far, near, b"answer") >= 0.02


async def test_a_connection_cut_off_is_cut_off_behind_it() -> None:
    async with through(Wire(0.01)) as (near, far):
        await carry(near, far, b"x")
        near[1].transport.abort()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(far[0].readexactly(1), PATIENCE)
