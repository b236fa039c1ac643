"""The one thread that owns a model, so that the event loop never waits for it.

The model is loaded there too. Each thread that computes gets OpenMP helpers of its own, and those of a thread that
loaded a model and then only waits still slow down every later pass on another.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar
from weakref import WeakSet

P = ParamSpec("P")
T = TypeVar("T")

_threads: WeakSet[ModelThread] = WeakSet()


class ModelThread:
    """Runs calls one after another off the event loop."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._calls: set[Future[Any]] = set()
        _threads.add(self)

    @property
    def busy(self) -> bool:
        """Whether a call is running or waits for its turn."""
        return bool(self._calls)

    def call(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs one call and waits for it, for what comes before there is an event loop."""
        return self._submit(call, *args, **kwargs).result()

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs one call. A cancelled caller leaves the call running: shield what must not be lost."""
        return await asyncio.wrap_future(self._submit(call, *args, **kwargs))

    def stop(self, patience: float = 5.0) -> None:
        """Ends the thread once the running call has returned; waits `patience` seconds for that at most."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        concurrent.futures.wait(set(self._calls), timeout=patience)

    def _submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future = self._executor.submit(call, *args, **kwargs)
        self._calls.add(future)
        future.add_done_callback(self._calls.discard)
        return future


async def aside(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs one call that computes beside the models; its thread and the OpenMP helpers that it gets end with it."""
    thread = ModelThread("aside")
    try:
        return await thread.run(call, *args, **kwargs)
    finally:
        thread.stop(0.0)


def stuck() -> list[str]:
    """Names of the threads whose call has not returned; the interpreter would wait for them at its exit."""
    return sorted(thread.name for thread in _threads if thread.busy)
