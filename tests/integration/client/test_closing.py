"""Leaving a stream early, from wherever: the server hears of it at once."""

from __future__ import annotations

import asyncio
import gc
import threading
import time

import pytest

from draftproof import AsyncClient, Client, RetryPolicy, errors


def test_leaving_the_block_cancels(server, answers):
    server.script = [answers["endless"]]
    with Client(server.address) as client:
        with client.stream("hi") as stream:
            assert next(stream).text == "<1><2>"
            assert stream.start.gamma == 4
        assert server.ended.acquire(timeout=2)
        assert list(stream) == []
        stream.close()
        with pytest.raises(RuntimeError):
            _ = stream.completion
    assert len(server.requests) == 1


def test_an_unread_stream_sends_nothing(server, answers):
    server.script = [answers["endless"]]
    with Client(server.address) as client, client.stream("hi"):
        pass
    assert server.requests == []


def test_a_dropped_stream_cancels(server, answers):
    server.script = [answers["endless"]]
    with Client(server.address) as client:
        stream = client.stream("hi")
        next(stream)
        del stream
        gc.collect()
        assert server.ended.acquire(timeout=2)


def test_another_thread_closes(server, answers):
    server.script = [answers["endless"]]
    with Client(server.address) as client:
        stream = client.stream("hi")
        next(stream)
        threading.Timer(0.1, stream.close).start()
        assert list(stream) == []
    assert server.ended.acquire(timeout=2)


def test_closing_ends_a_pause(server, answers):
    server.script = [answers["refusing"](errors.OverloadedError("full", retry_delay=20.0))]
    with Client(server.address) as client:
        stream = client.stream("hi")
        begin = time.monotonic()
        threading.Timer(0.2, stream.close).start()
        assert list(stream) == []
        assert time.monotonic() - begin < 5


def test_closing_the_client_ends_its_streams(server, answers):
    server.script = [answers["endless"]]
    client = Client(server.address)
    stream = client.stream("hi")
    next(stream)
    threading.Timer(0.1, client.close).start()
    with pytest.raises(errors.RequestCancelledError):
        list(stream)
    with pytest.raises(errors.RequestCancelledError, match="closed"):
        client.generate("hi")


def test_threads_share_a_client(server, answers):
    server.script = [answers["whole"]((1, 2), (3,))]
    results = []
    with Client(server.address) as client:
        threads = [threading.Thread(target=lambda: results.append(client.generate("hi").token_ids)) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == [(1, 2, 3)] * 20


async def test_leaving_the_block_cancels_asyncio(server, answers):
    server.script = [answers["endless"]]
    async with AsyncClient(server.address) as client:
        async with client.stream("hi") as stream:
            assert (await anext(stream)).text == "<1><2>"
        assert await asyncio.to_thread(server.ended.acquire, timeout=2)
        assert [chunk async for chunk in stream] == []


@pytest.mark.parametrize("token", [None, "secret"])
async def test_cancelling_the_task_cancels_the_call(server, answers, token):
    server.script = [answers["endless"]]
    async with AsyncClient(server.address, token=token) as client:
        task = asyncio.create_task(client.generate("hi"))
        assert await asyncio.to_thread(server.arrived.acquire, timeout=5)
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(server.ended.acquire, timeout=2)


@pytest.mark.parametrize("token", [None, "secret"])
async def test_another_task_closes(server, answers, token):
    server.script = [answers["endless"]]
    async with AsyncClient(server.address, token=token) as client:
        stream = client.stream("hi")
        await anext(stream)

        async def close() -> None:
            await asyncio.sleep(0.1)
            await stream.aclose()

        closing = asyncio.create_task(close())
        assert [chunk async for chunk in stream] == []
        await closing
        assert await asyncio.to_thread(server.ended.acquire, timeout=2)


async def test_closing_ends_a_pause_asyncio(server, answers):
    server.script = [answers["refusing"](errors.OverloadedError("full", retry_delay=20.0))]
    async with AsyncClient(server.address) as client:
        stream = client.stream("hi")
        asyncio.get_running_loop().call_later(0.2, lambda: tasks.append(asyncio.create_task(stream.aclose())))
        tasks: list[asyncio.Task[None]] = []
        async with asyncio.timeout(5):
            assert [chunk async for chunk in stream] == []


async def test_closing_the_client_ends_its_streams_asyncio(server, answers):
    server.script = [answers["endless"]]
    client = AsyncClient(server.address)
    stream = client.stream("hi")
    await anext(stream)
    closing = asyncio.create_task(client.aclose())
    with pytest.raises(errors.RequestCancelledError):
        async for _ in stream:
            pass
    await closing
    with pytest.raises(errors.RequestCancelledError, match="closed"):
        await client.generate("hi")


async def test_many_at_once_over_few_places_all_finish(server, answers):
    """More callers than places: everyone refused comes back until it is served."""
    places = threading.Semaphore(8)
    serve, refuse = answers["whole"]((1, 2)), answers["refusing"](errors.OverloadedError("full", retry_delay=0.05))

    def answer(request, context):
        if not places.acquire(blocking=False):
            yield from refuse(request, context)
            return
        try:
            time.sleep(0.02)
            yield from serve(request, context)
        finally:
            places.release()

    server.script = [answer]
    async with AsyncClient(server.address) as client:
        done = await asyncio.gather(*(client.generate("hi", timeout=60.0) for _ in range(200)))
    assert [completion.token_ids for completion in done] == [(1, 2)] * 200


def test_a_killed_server_in_mid_stream_then_another(server, answers):
    """A server that stops under a running call looks like any other loss."""
    policy = RetryPolicy(initial_backoff=0.01, max_backoff=0.05)
    server.script = [answers["broken"](1, error=errors.RequestCancelledError("stopping")), answers["whole"]((1,), (2,))]
    with Client(server.address, retries=policy) as client:
        completion = client.generate("hi")
    assert completion.token_ids == (1, 2)
