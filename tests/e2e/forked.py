"""Services forked from a process that has imported what they import: a start costs what the service does, not 5 s more.

Each is a process of its own all the same, running the same `__main__` on its own command line; what is shared is the
imports alone. Whether a service comes up from nothing is for `tests.e2e.test_start`.
"""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path

IMPORTS = ("tests.e2e.forked_imports",)
_FORKS = get_context("forkserver")
_FORKS.set_forkserver_preload(list(IMPORTS))


class Forked:
    """One forked process, with what tests use of `subprocess.Popen`."""

    def __init__(self, module: str, arguments: list[str], log: Path, environment: dict[str, str]) -> None:
        self.args = [module, *arguments]
        log.touch()
        # as a daemon: should pytest die, it takes the process with it
        self._process = _FORKS.Process(target=_run, args=(module, arguments, str(log), environment), daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit code, negative after a signal; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Exit code, or None while it runs."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end.

        Raises:
            subprocess.TimeoutExpired: it runs on.
        """
        self._process.join(timeout)
        if (code := self.returncode) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def _run(module: str, arguments: list[str], log: str, environment: dict[str, str]) -> None:
    with open(log, "ab") as out, open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(write_through=True)  # type: ignore[union-attr]
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
