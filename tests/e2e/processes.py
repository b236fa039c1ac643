"""Services as real processes on free loopback ports: started, watched through their logs, signalled by pid."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.forked import Forked

ROOT = Path(__file__).parents[2]
START_SECONDS = 120.0
STOP_SECONDS = 20.0
POLL_SECONDS = 0.02
TAIL_LINES = 30
TAIL_WIDTH = 600
COMMON = ("--log-format", "json", "--dtype", "float32", "--threads", "1", "--metrics-port", "0", "--grace", "10")


class StartError(Exception):
    """A service stopped, or said nothing in time."""


class Running:
    """One process whose log lines go to a file.

    Attributes:
        log: everything it wrote to either stream.
        process: a `subprocess.Popen`, or a `Forked`, which has what is needed of it.
    """

    def __init__(self, name: str, process: subprocess.Popen[bytes] | Forked, log: Path) -> None:
        self.name = name
        self.process = process
        self.log = log

    @property
    def pid(self) -> int:
        """Process id."""
        return self.process.pid

    @property
    def address(self) -> str:
        """Where it serves."""
        return str(self.event("serving")["address"])

    @property
    def port(self) -> int:
        """Port it serves on."""
        return int(self.address.rpartition(":")[2])

    def events(self, name: str) -> Iterator[dict[str, Any]]:
        """The log lines of one event so far."""
        for line in self.log.read_text(errors="replace").splitlines():
            if name in line and (record := _parse(line)).get("event") == name:
                yield record

    def event(self, name: str, seconds: float = START_SECONDS, after: int = 0) -> dict[str, Any]:
        """Waits for a log line.

        Args:
            name: its event.
            seconds: how long to wait.
            after: how many earlier ones to pass over.

        Raises:
            StartError: it stopped, or the time is over.
        """
        end = time.monotonic() + seconds
        while True:
            stopped = self.process.poll() is not None
            if len(found := list(self.events(name))) > after:
                return found[after]
            if stopped or time.monotonic() > end:
                raise StartError(f"{self.name} did not say {name!r}:\n{self.tail()}")
            time.sleep(POLL_SECONDS)

    def metric(self, name: str, **labels: str) -> float:
        """A sample of /metrics: its name without the common prefix."""
        url = f"http://127.0.0.1:{self.event('metrics')['port']}/metrics"
        with urllib.request.urlopen(url, timeout=5) as response:
            text = response.read().decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == f"draftproof_{name}" and sample.labels == labels:
                    return float(sample.value)
        raise LookupError(f"{self.name} exports no {name} {labels}")

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()

    def terminate(self) -> None:
        """SIGTERM, without waiting."""
        self.process.send_signal(signal.SIGTERM)

    def stop(self) -> int:
        """SIGTERM, then SIGKILL where that doesn't suffice; returns the exit code."""
        if self.process.poll() is None:
            self.terminate()
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def tail(self) -> str:
        """The last lines of its log."""
        lines = self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        return "\n".join(line[:TAIL_WIDTH] for line in lines)


class Launcher:
    """Starts services and stops them all at the end, newest first; their logs stay in `folder`.

    Attributes:
        fresh: whether services come up from nothing, as users start them; if not, from a process with their imports.
    """

    def __init__(self, folder: Path, fresh: bool = False) -> None:
        self.folder = folder
        self.fresh = fresh
        self.running: list[Running] = []

    def target(self, model: Path | str, *arguments: str, rule: str | None = None, port: int = 0) -> Running:
        """Starts a target and waits until it serves.

        Args:
            model: folder or name.
            arguments: more of its command line.
            rule: a variant of `tests.e2e.variants` in place of the real rule.
            port: where to listen.
        """
        options = [*COMMON, "--model", str(model), "--port", str(port), *arguments]
        target = self._serve("target_service", rule, options)
        target.event("serving")
        return target

    def draft(
        self, target: Running, model: Path | str, *arguments: str, rule: str | None = None, port: int = 0
    ) -> Running:
        """Starts a draft and waits until it has agreed with its target. Arguments as for `target`."""
        options = [*COMMON, "--model", str(model), "--port", str(port), "--target", target.address, *arguments]
        draft = self._serve("draft_service", rule, options)
        draft.event("target connected")
        return draft

    def start(self, name: str, command: list[str]) -> Running:
        """Starts any command."""
        log = self._log(name)
        with log.open("wb") as out:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT, env=environment()
            )
        return self._started(name, process, log)

    def _serve(self, module: str, rule: str | None, options: list[str]) -> Running:
        name = module.removesuffix("_service")
        module, options = (module, options) if rule is None else ("tests.e2e.variants", [rule, module, *options])
        if self.fresh:
            return self.start(name, [sys.executable, "-m", module, *options])
        log = self._log(name)
        return self._started(name, Forked(module, options, log, environment()), log)

    def _log(self, name: str) -> Path:
        return self.folder / f"{len(self.running):02}-{name}.log"

    def _started(self, name: str, process: subprocess.Popen[bytes] | Forked, log: Path) -> Running:
        running = Running(name, process, log)
        self.running.append(running)
        return running

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for running in reversed(self.running):
            running.stop()


def service(module: str, *arguments: str) -> list[str]:
    """Command line of a service."""
    return [sys.executable, "-m", module, "--log-format", "json", *arguments]


def environment() -> dict[str, str]:
    """Environment of a child: its output unbuffered, its tensors on one thread."""
    return {**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}


def eventually(condition: Any, seconds: float) -> bool:
    """Whether a condition comes true within some seconds."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(POLL_SECONDS)
    return True


def _parse(line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}
