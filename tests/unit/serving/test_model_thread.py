"""A model's thread: calls one after another, and an end that does not wait for ever."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from draftproof.serving.model_thread import ModelThread, stuck


async def test_results_and_errors_come_back() -> None:
    thread = ModelThread("works")
    assert await thread.run(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await thread.run(divmod, 7, 0)
    thread.stop()
    assert "works" not in stuck()


async def test_stop_waits_for_a_call_but_not_for_ever() -> None:
    free, thread = threading.Event(), ModelThread("hangs")
    calls = [asyncio.create_task(thread.run(free.wait, 60.0)) for _ in range(2)]
    try:
        await asyncio.sleep(0.05)
        began = time.monotonic()
        thread.stop(0.05)
        assert time.monotonic() - began < 20.0
        assert "hangs" in stuck()
    finally:
        free.set()
    assert (await asyncio.gather(*calls, return_exceptions=True))[0] is True
    thread.stop(20.0)
    assert "hangs" not in stuck()
