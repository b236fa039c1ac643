"""Kill -9 in the middle of a round: the survivors free the session within two seconds and go on. SIGTERM drains.

Targets here take PASS_SECONDS for every forward pass, so that whatever happens falls into a running round.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import pytest

from draftproof import AsyncClient, Completion, RetryPolicy
from draftproof.client.aio_stream import AsyncStream
from draftproof.errors import RequestError
from tests.e2e.conftest import Models
from tests.e2e.family import PROMPT
from tests.e2e.processes import Launcher, Running, eventually
from tests.e2e.variants import PASS_SECONDS

FREED_SECONDS = 2.0
NO_RETRIES = RetryPolicy(overloaded=False, unavailable=0.0, resume=False)
ENDLESS = {"ignore_eos": True, "max_tokens": 400, "gamma": 3, "seed": 5}
SHORT = {"ignore_eos": True, "max_tokens": 6, "gamma": 3, "seed": 5}
SETTINGS = ("--slots", "2", "--queue-limit", "0")

CLIENT = """
import sys
from draftproof import Client
with Client(sys.argv[1]) as client, client.stream(token_ids=eval(sys.argv[2]), **eval(sys.argv[3])) as stream:
    for chunk in stream:
        print('{"event": "chunk"}', flush=True)
"""


def start_pair(launcher: Launcher, models: Models, target_port: int = 0) -> tuple[Running, Running]:
    """A slow target of two slots and its draft."""
    target = launcher.target(models.target(32), *SETTINGS, rule="slow", port=target_port)
    return target, launcher.draft(target, models.draft(32, "good"), "--drafter", "model")


async def sessions(server: Running) -> int:
    """Requests that a server has open."""
    async with AsyncClient(server.address) as client:
        return (await client.info()).sessions


async def freed(server: Running, seconds: float = FREED_SECONDS) -> bool:
    """Whether a server's sessions are gone within some seconds."""
    end = time.monotonic() + seconds
    while await sessions(server):
        if time.monotonic() > end:
            return False
        await asyncio.sleep(0.02)
    return True


def slots_free(target: Running) -> bool:
    """Whether no session holds a slot of the target."""
    return target.metric("active_sessions") == 0


async def under_way(stream: AsyncStream) -> None:
    """Returns inside the third round: two verdicts have come, the next pass is running."""
    await anext(stream)
    await anext(stream)
    await asyncio.sleep(PASS_SECONDS / 2)


async def answer(server: Running) -> Completion:
    """A short request."""
    async with AsyncClient(server.address, retries=NO_RETRIES) as client:
        return await client.generate(token_ids=PROMPT, timeout=30.0, **SHORT)


async def test_the_client_dies(launcher: Launcher, models: Models) -> None:
    target, draft = start_pair(launcher, models)
    client = launcher.start("client", [sys.executable, "-c", CLIENT, draft.address, str(PROMPT), str(ENDLESS)])
    client.event("chunk", after=1)
    assert target.metric("active_sessions") == 1
    assert await sessions(draft) == 1

    client.kill()
    assert await freed(draft)
    assert eventually(lambda: slots_free(target), FREED_SECONDS)
    assert len((await answer(draft)).tokens) == 6


async def test_the_draft_dies(launcher: Launcher, models: Models) -> None:
    target, draft = start_pair(launcher, models)
    expected = await answer(draft)
    client = AsyncClient(draft.address, retries=NO_RETRIES)
    async with client, client.stream(token_ids=PROMPT, **ENDLESS) as stream:
        await under_way(stream)
        draft.kill()
        assert eventually(lambda: slots_free(target), FREED_SECONDS)
        with pytest.raises(RequestError):
            async for _ in stream:
                pass

    successor = launcher.draft(target, models.draft(32, "good"), "--drafter", "model")
    assert (await answer(successor)).token_ids == expected.token_ids
    # the target serves without any draft, too
    assert len((await answer(target)).tokens) == 6


async def test_a_coupled_text_is_the_seeds_own_whatever_dies_and_however_far_is_drafted(
    launcher: Launcher, models: Models
) -> None:
    """In float32: by the target alone, at other gammas, and over a kill -9 of the draft in the middle of a round."""
    target, draft = start_pair(launcher, models)
    asked = {"token_ids": PROMPT, "ignore_eos": True, "max_tokens": 24, "seed": 5, "rule": "coupled", "timeout": 120.0}
    async with AsyncClient(target.address) as alone, AsyncClient(draft.address) as client:
        expected = await alone.generate(**asked)
        for gamma in (0, 2, 8):
            found = await client.generate(**asked, gamma=gamma)
            assert found.token_ids == expected.token_ids
            assert (found.stats.accepted > 0) == (gamma > 0)
        async with client.stream(**asked, gamma=2) as stream:
            await under_way(stream)
            draft.kill()
            starting = asyncio.to_thread(
                launcher.draft, target, models.draft(32, "good"), "--drafter", "model", port=draft.port
            )
            successor = asyncio.create_task(starting)
            async for _ in stream:
                pass
            await successor
        assert stream.completion.token_ids == expected.token_ids


async def test_the_target_dies(launcher: Launcher, models: Models) -> None:
    target, draft = start_pair(launcher, models)
    expected = await answer(draft)
    client = AsyncClient(draft.address, retries=NO_RETRIES)
    async with client, client.stream(token_ids=PROMPT, **ENDLESS) as stream:
        await under_way(stream)
        target.kill()
        killed_at = time.monotonic()
        with pytest.raises(RequestError, match="can't be reached"):
            async for _ in stream:
                pass
        assert time.monotonic() - killed_at < FREED_SECONDS
    assert await freed(draft, 0.5)

    launcher.target(models.target(32), *SETTINGS, rule="slow", port=target.port)
    draft.event("target connected", after=1)
    assert (await answer(draft)).token_ids == expected.token_ids


async def test_a_target_that_comes_back_in_time_is_not_noticed(launcher: Launcher, models: Models) -> None:
    """The same round on a new target gives the verdict that the old one took with it."""
    target = launcher.target(models.target(32), *SETTINGS, rule="slow")
    arguments = ("--drafter", "model", "--reconnect-timeout", "60")
    draft = launcher.draft(target, models.draft(32, "good"), *arguments)
    wanted = {**ENDLESS, "max_tokens": 24}
    async with AsyncClient(draft.address, retries=NO_RETRIES) as client:
        expected = await client.generate(token_ids=PROMPT, **wanted)
        async with client.stream(token_ids=PROMPT, **wanted) as stream:
            await under_way(stream)
            target.kill()
            launcher.target(models.target(32), *SETTINGS, rule="slow", port=target.port)
            async for _ in stream:
                pass
    assert stream.completion.token_ids == expected.token_ids
    assert stream.completion.text == expected.text


@pytest.mark.parametrize("who", ["target", "draft"])
async def test_sigterm_lets_running_requests_finish(launcher: Launcher, models: Models, who: str) -> None:
    target, draft = start_pair(launcher, models)
    leaving = {"target": target, "draft": draft}[who]
    async with AsyncClient(draft.address, retries=NO_RETRIES) as client:
        async with client.stream(token_ids=PROMPT, **{**ENDLESS, "max_tokens": 24}) as stream:
            await under_way(stream)
            leaving.terminate()
            leaving.event("draining", seconds=5.0)
            with pytest.raises(RequestError, match=r"shutting down|can't be reached"):
                await client.generate(token_ids=PROMPT, **SHORT)
            async for _ in stream:
                pass
        assert len(stream.completion.tokens) == 24
    assert await asyncio.to_thread(leaving.process.wait, 10.0) == 0


async def test_what_outlasts_the_grace_period_is_handed_back(models: Models, tmp_path: Path) -> None:
    """The client resumes from the prefix at the server's successor: the text is the one of an undisturbed run."""
    wanted = {**ENDLESS, "max_tokens": 24}
    with Launcher(tmp_path) as launcher:
        target, draft = start_pair(launcher, models)
        async with AsyncClient(draft.address) as client:
            expected = await client.generate(token_ids=PROMPT, **wanted)
        draft.stop()
        hasty = launcher.draft(target, models.draft(32, "good"), "--drafter", "model", "--grace", "0.1")
        async with AsyncClient(hasty.address) as client, client.stream(token_ids=PROMPT, **wanted) as stream:
            await under_way(stream)
            assert await asyncio.to_thread(hasty.stop) == 0
            await asyncio.to_thread(
                launcher.draft, target, models.draft(32, "good"), "--drafter", "model", port=hasty.port
            )
            async for _ in stream:
                pass
        assert stream.completion.token_ids == expected.token_ids
