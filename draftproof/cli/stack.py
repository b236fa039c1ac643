"""Services as child processes: started in order, watched, stopped in the opposite order whatever happens."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from draftproof.errors import DraftproofError
from draftproof.serving.lifecycle import PARENT

_TAIL_LINES = 40
_POLL_SECONDS = 0.1


class ServiceError(DraftproofError):
    """A service didn't start, or stopped by itself."""


class Interrupted(DraftproofError):
    """The user asked to stop while something was still starting.

    Attributes:
        number: of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__("stopped before it had started")
        self.number = number


@dataclass(frozen=True, slots=True)
class Service:
    """A process to run.

    Attributes:
        name: for people.
        command: its command line.
        environment: variables beside the inherited ones; the place for secrets.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


LineSeen = Callable[[str, str], None]


class Child:
    """One running service. A thread reads what it logs."""

    def __init__(self, service: Service, seen: LineSeen) -> None:
        self.name = service.name
        self.address: str | None = None
        self._serving = threading.Event()
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._seen = seen
        # its own session: Ctrl-C on the terminal reaches the parent alone, which stops the children in order
        self.process = subprocess.Popen(
            list(service.command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", PARENT: str(os.getpid()), **service.environment},
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name=f"log of {self.name}", daemon=True)
        self._reader.start()

    @property
    def is_serving(self) -> bool:
        """Whether it has said so."""
        return self._serving.is_set()

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self.process.poll() is None

    def failure(self) -> ServiceError:
        """Why it stopped, from its last words."""
        self._reader.join(timeout=2)
        lines = [line.strip() for line in self._tail if line.strip()]
        said = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        last = said[-1] if said else lines[-1] if lines else "no output"
        return ServiceError(f"the {self.name} service stopped with exit code {self.process.returncode}: {last}")

    def stop(self, patience: float) -> None:
        """SIGTERM, then SIGKILL where `patience` seconds don't suffice."""
        if self.is_alive:
            self._signal(signal.SIGTERM)
            try:
                self.process.wait(patience)
            except subprocess.TimeoutExpired:
                self.kill()
        self._reader.join(timeout=2)
        if self.process.stdout is not None and not self._reader.is_alive():
            self.process.stdout.close()

    def kill(self) -> None:
        """SIGKILL."""
        self._signal(signal.SIGKILL)
        self.process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._tail.append(line.rstrip("\n"))
            self._seen(self.name, line.rstrip("\n"))
            record = parse(line)
            if record.get("event") == "serving":
                self.address = str(record.get("address", ""))
                self._serving.set()


class Stack:
    """Children of this process.

    with Stack() as stack:
        target = stack.start(Service(...))
        stack.wait_serving(target, timeout=60)
        stack.watch()

    Args:
        seen: called with name and line for every log line, from another thread.
        patience: seconds each child gets to stop.
    """

    def __init__(self, seen: LineSeen = lambda name, line: None, patience: float = 40.0) -> None:
        self._children: list[Child] = []
        self._seen = seen
        self._patience = patience
        self._stop = threading.Event()
        self._signal: int = signal.SIGINT
        self._old_handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._old_handlers[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        for child in reversed(self._children):
            child.stop(self._patience)
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)

    def start(self, service: Service) -> Child:
        """Starts a service and returns at once.

        Raises:
            Interrupted: stopping has begun.
        """
        self._check_stop()
        child = Child(service, self._seen)
        self._children.append(child)
        return child

    def wait_serving(self, child: Child, timeout: float, healthy: Callable[[str], bool]) -> str:
        """Waits until a child serves and is healthy; returns its address.

        Raises:
            ServiceError: it stopped, or the time is over.
            Interrupted: the user asked to stop.
        """
        end = time.monotonic() + timeout
        for _ in self._ticks():
            if not child.is_alive:
                raise child.failure()
            if child.is_serving and child.address and healthy(child.address):
                return child.address
            if time.monotonic() > end:
                raise ServiceError(
                    f"the {child.name} service wasn't ready within {timeout:g} s; --logs shows what it does,"
                    " --wait gives it longer"
                )
        raise Interrupted(self._signal)

    def watch(self) -> None:
        """Returns when the user asks to stop.

        Raises:
            ServiceError: a child stopped by itself.
        """
        for _ in self._ticks():
            for child in self._children:
                if not child.is_alive:
                    raise child.failure()

    def _ticks(self) -> Iterator[None]:
        while not self._stop.is_set():
            yield
            self._stop.wait(_POLL_SECONDS)

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise Interrupted(self._signal)

    def _on_signal(self, number: int, frame: object) -> None:
        if self._stop.is_set():
            # the second time: whoever asks twice doesn't want to wait
            for child in reversed(self._children):
                child.kill()
        self._signal = number
        self._stop.set()


def parse(line: str) -> dict[str, Any]:
    """A JSON log line as a dict; empty where it is none."""
    try:
        record = json.loads(line)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}
