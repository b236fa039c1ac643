"""Rollouts of both clients: outcomes in order, errors of single samples, how many run at once, what ends them early."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from draftproof import AsyncClient, Client, errors
from draftproof.client import NO_RETRIES


def roll(face, address, prompts, client=None, **call):
    client = {"retries": NO_RETRIES, **(client or {})}
    if face.name == "sync":
        with Client(address, **client) as sync_client:
            return sync_client.rollout(prompts, **call)

    async def run():
        async with AsyncClient(address, **client) as aio:
            return await aio.rollout(prompts, **call)

    return asyncio.run(run())


def echo(answers, failing=()):
    """Answers with the prompt's first id and the sample index; fails for some (id, index)."""

    def answer(request, context):
        own = (request.token_ids.ids[0], request.sample_index)
        if own in failing:
            return answers["refusing"](errors.NumericsError(f"NaN {own}"))(request, context)
        return answers["whole"](own)(request, context)

    return answer


def test_samples_in_order_and_the_failed_ones_in_their_place(server, face, answers):
    server.script = [echo(answers, failing={(5, 1), (6, 0)})]
    first, second = roll(face, server.address, [[5], [6]], n=3, seed=1)
    assert [s.sample_index for s in first.samples] == [0, 1, 2]
    assert [c.token_ids for c in first.completions] == [(5, 0), (5, 2)]
    assert [c.token_ids for c in second.completions] == [(6, 1), (6, 2)]
    assert (first.errors[0].message, second.errors[0].message) == ("NaN (5, 1)", "NaN (6, 0)")
    assert isinstance(second.samples[0].error, errors.NumericsError)
    assert len(server.requests) == 6


def test_as_many_at_once_as_asked_and_the_timeout_of_each_begins_with_it(server, face, answers):
    now, most, lock = 0, 0, threading.Lock()

    def slow(request, context):
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.15)
        with lock:
            now -= 1
        yield from answers["whole"]((1,))(request, context)

    server.script = [slow]
    (rollout,) = roll(face, server.address, ["a"], n=12, concurrency=3, timeout=0.5)
    assert len(rollout.completions) == 12
    assert most == 3


def test_a_sample_that_takes_too_long_is_alone_in_it(server, face, answers):
    def answer(request, context):
        return (answers["endless"] if request.sample_index == 1 else answers["whole"]((1,)))(request, context)

    server.script = [answer]
    (rollout,) = roll(face, server.address, ["a"], n=3, timeout=0.4)
    assert [type(s.error) for s in rollout.samples] == [type(None), errors.DeadlineExceededError, type(None)]


def test_nothing_is_sent_where_a_prompt_is_wrong(server, face, answers):
    server.script = [answers["whole"]((1,))]
    with pytest.raises(errors.InvalidArgumentError, match=r"prompts\[1\]\[0\]"):
        roll(face, server.address, ["a", [-1]])
    with pytest.raises(errors.InvalidArgumentError, match="timeout"):
        roll(face, server.address, ["a"], timeout=-1.0)
    assert server.requests == []
    assert roll(face, server.address, []) == []


def test_a_bug_ends_all_of_them_at_once(server, face, answers, monkeypatch):
    """What is no sample's error reaches the caller, and nothing goes on running behind its back."""
    from draftproof.client.generation import Generation

    feed = Generation.feed

    def broken(self, response):
        if self._request.sample_index == 1:
            raise ZeroDivisionError
        return feed(self, response)

    monkeypatch.setattr(Generation, "feed", broken)

    def answer(request, context):
        return (answers["whole"]((1,)) if request.sample_index == 1 else answers["endless"])(request, context)

    server.script = [answer]
    begin = time.monotonic()
    with pytest.raises((ZeroDivisionError, ExceptionGroup)):
        roll(face, server.address, ["a"], n=4, timeout=30.0)
    assert time.monotonic() - begin < 5


def test_closing_the_client_ends_its_rollouts(server, face, answers):
    server.script = [answers["endless"]]
    if face.name == "sync":
        client = Client(server.address, retries=NO_RETRIES)
        closing = threading.Timer(0.3, client.close)
        closing.start()
        (rollout,) = client.rollout(["a"], n=3, timeout=30.0)
        with pytest.raises(errors.RequestCancelledError):
            client.rollout(["a"])
    else:

        async def run():
            aio = AsyncClient(server.address, retries=NO_RETRIES)
            running = asyncio.create_task(aio.rollout(["a"], n=3, timeout=30.0))
            await asyncio.sleep(0.3)
            await aio.aclose()
            with pytest.raises(errors.RequestCancelledError):
                await aio.rollout(["a"])
            return await running

        (rollout,) = asyncio.run(run())
    assert [type(s.error) for s in rollout.samples] == [errors.RequestCancelledError] * 3


async def test_cancelling_the_task_cancels_the_calls(server, answers):
    server.script = [answers["endless"]]
    async with AsyncClient(server.address, retries=NO_RETRIES) as aio:
        running = asyncio.create_task(aio.rollout(["a"], n=3, timeout=30.0))
        for _ in range(3):
            assert await asyncio.to_thread(server.arrived.acquire, timeout=5)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    for _ in range(3):
        assert server.ended.acquire(timeout=5)
