"""A TCP relay that makes a wide-area link out of loopback: delay, bandwidth and jitter, in both directions.

`python -m bench.proxy HOST:PORT [--port P] [--rtt S] [--mbit N] [--jitter S]` prints its own address and relays to the
one given. Each direction is one link that all connections share: bytes leave one after another at the given rate, then
travel half the round trip plus a random delay, and arrive in the order in which they left. What a sender may have under
way beyond the delay itself is bounded, as the buffers of a real link are.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import selectors
import sys
import threading
from dataclasses import dataclass, field
from typing import Self

CHUNK = 8192
BACKLOG_SECONDS = 0.05
BACKLOG_BYTES = 65536


@dataclass(frozen=True, slots=True)
class Wire:
    """One direction of a link.

    Attributes:
        delay: seconds that a byte travels.
        rate: bytes per second, None: unlimited.
        jitter: most seconds of random delay more.
        seed: of the jitter.
    """

    delay: float = 0.0
    rate: float | None = None
    jitter: float = 0.0
    seed: int = 0


@dataclass
class _Direction:
    """When what is sent now arrives."""

    wire: Wire
    free_at: float = 0.0
    last: float = 0.0
    random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.wire.seed)

    def arrival(self, now: float, size: int) -> float:
        """Takes `size` bytes into the link."""
        wire = self.wire
        if wire.rate is not None:
            self.free_at = max(now, self.free_at) + size / wire.rate
        left = max(now, self.free_at)
        self.last = max(self.last, left + wire.delay + self.random.uniform(0.0, wire.jitter))
        return self.last

    def wait(self, now: float) -> float:
        """Seconds until the next bytes may enter: as much as the link's buffer holds may wait in it."""
        if self.wire.rate is None:
            return 0.0
        return self.free_at - now - max(BACKLOG_SECONDS, BACKLOG_BYTES / self.wire.rate)


class Proxy:
    """Relays connections to one address.

    Args:
        host: where to.
        port: and its port.
        there: the way from whoever connects.
        back: the way back; None: the same.
    """

    def __init__(self, host: str, port: int, there: Wire, back: Wire | None = None) -> None:
        self._to = host, port
        self._there, self._back = _Direction(there), _Direction(back or there)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, port: int = 0) -> int:
        """Listens on loopback; returns the port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Ends every connection."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        writers, ended = [writer], False
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._to)
            writers.append(far_writer)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._carry(reader, far_writer, self._there))
                both.create_task(self._carry(far_reader, writer, self._back))
            ended = True
        except* OSError:
            pass
        finally:
            for one in writers:
                if ended:
                    one.close()
                else:
                    one.transport.abort()

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, direction: _Direction) -> None:
        """Until the source ends: a half-closed connection stays open the other way."""
        clock = asyncio.get_running_loop().time
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._deliver(under_way, sink))
            while data := await source.read(CHUNK):
                under_way.put_nowait((direction.arrival(clock(), len(data)), data))
                if (wait := direction.wait(clock())) > 0:
                    await asyncio.sleep(wait)
            under_way.put_nowait((direction.arrival(clock(), 0), b""))

    async def _deliver(self, under_way: asyncio.Queue[tuple[float, bytes]], sink: asyncio.StreamWriter) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            due, data = await under_way.get()
            if (wait := due - clock()) > 0:
                await asyncio.sleep(wait)
            if not data:
                sink.write_eof()
                return
            sink.write(data)
            await sink.drain()


def precise_loop() -> asyncio.AbstractEventLoop:
    """An event loop whose timers are exact to microseconds: epoll rounds them up to milliseconds."""
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


class Relays:
    """Relays on a thread of their own, for benches that block; ended with the block."""

    def __enter__(self) -> Self:
        self._runner = asyncio.Runner(loop_factory=precise_loop)
        self._loop = self._runner.get_loop()
        self._proxies: list[Proxy] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="relays", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for proxy in self._proxies:
            asyncio.run_coroutine_threadsafe(proxy.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._runner.close()

    def to(self, address: str, rtt: float, mbit: float = 0.0, jitter: float = 0.0) -> str:
        """A link to an address.

        Args:
            address: host:port.
            rtt: seconds there and back.
            mbit: Mbit/s each way, 0: unlimited.
            jitter: most seconds of random delay more, each way.

        Returns:
            Its near end, host:port.
        """
        proxy = _between(address, rtt, mbit, jitter)
        self._proxies.append(proxy)
        return f"127.0.0.1:{asyncio.run_coroutine_threadsafe(proxy.start(), self._loop).result()}"


def _between(address: str, rtt: float, mbit: float, jitter: float) -> Proxy:
    host, _, port = address.rpartition(":")
    rate = mbit * 1e6 / 8 if mbit else None
    return Proxy(host, int(port), *(Wire(rtt / 2, rate, jitter, seed) for seed in (0, 1)))


async def _serve(args: argparse.Namespace) -> None:
    proxy = _between(args.address, args.rtt, args.mbit, args.jitter)
    print(f"127.0.0.1:{await proxy.start(args.port)}", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await proxy.close()


def main() -> None:
    """Relays until its standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("address", help="where to relay to, host:port")
    parser.add_argument("--port", type=int, default=0, help="where to listen; 0: a free port")
    parser.add_argument("--rtt", type=float, default=0.0, help="seconds there and back")
    parser.add_argument("--mbit", type=float, default=0.0, help="Mbit/s each way; 0: unlimited")
    parser.add_argument("--jitter", type=float, default=0.0, help="most seconds of random delay more, each way")
    with asyncio.Runner(loop_factory=precise_loop) as runner:
        runner.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
