"""Real processes over the table engine: one worker (`python -m bench.fake_cluster target …`), and a cluster of them.

The table engine has no arithmetic to speak of; its passes sleep for as long as they are told. So a cluster of several
processes fits two cores, and what is measured is everything but the models.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from draft_service.app import DraftApp, DraftConfig, TargetAddress
from draft_service.drafters.model import ModelDrafter, encoder
from draftproof.engine.interface import Row
from draftproof.rpc.options import RpcLimits
from draftproof.serving import logs
from draftproof.serving.lifecycle import App, main
from draftproof.serving.options import ListenConfig
from draftproof.testing.table import ByteTokenizer, TableEngine
from target_service.app import TargetApp, TargetConfig

VOCABULARY = 27
ROOT = Path(__file__).parents[1]
START_SECONDS = 60.0


class TimedEngine(TableEngine):
    """Sleeps for each pass, and for each token it is fed."""

    def __init__(self, speed: Speed) -> None:
        super().__init__(
            speed.vocabulary, spread=speed.spread, noise=speed.noise, slots=speed.slots, max_context=speed.max_context
        )
        self._pass_delay = speed.delay
        self._token_delay = speed.token_delay

    def forward(self, rows: Sequence[Row]) -> torch.Tensor:
        """Runs all rows."""
        time.sleep(self._pass_delay + self._token_delay * sum(len(row.token_ids) for row in rows))
        return super().forward(rows)


@dataclass(frozen=True, slots=True)
class Speed:
    """A worker's engine.

    Attributes:
        delay: seconds of a pass.
        token_delay: seconds more for each token fed.
        noise: share of another table mixed in; 0 is the target itself, 1 garbage.
        slots: sequences at once.
        max_context: tokens of a sequence.
        vocabulary: V.
        spread: standard deviation of the logits.
    """

    delay: float = 0.0
    token_delay: float = 0.0
    noise: float = 0.0
    slots: int = 8
    max_context: int = 4096
    vocabulary: int = VOCABULARY
    spread: float = 1.5


def build(
    role: str, listen: ListenConfig, speed: Speed, target: str, gamma: int, ahead: bool | None, encoding: str
) -> App:
    """One worker."""
    torch.set_num_threads(1)
    tokenizer = ByteTokenizer(speed.vocabulary, first_byte=ord("a"))
    engine = TimedEngine(speed)
    if role == "target":
        return TargetApp(engine, tokenizer, TargetConfig(listen=listen))
    link = TargetAddress(address=target, insecure=listen.insecure)
    config = DraftConfig(target=link, listen=listen, gamma=gamma, ahead=ahead)
    return DraftApp(ModelDrafter(engine, encoder(encoding, 128, 12)), tokenizer, speed.vocabulary, config)


def worker(role: str, speed: Speed, *more: str) -> list[str]:
    """Command line of a worker."""
    command = [sys.executable, "-m", "bench.fake_cluster", role, *more]
    for name, value in asdict(speed).items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    return command


@dataclass(slots=True)
class Process:
    """One process of the cluster; `start` again after `kill` takes the same port."""

    name: str
    command: list[str]
    log: Path
    address: str = "127.0.0.1:0"
    metrics_port: int = 0
    running: subprocess.Popen[bytes] | None = None
    _read: int = 0

    def start(self) -> None:
        """Starts it without waiting."""
        with self.log.open("ab") as out:
            self._read = out.tell()
            self.running = subprocess.Popen(
                [*self.command, "--port", self.address.rpartition(":")[2]],
                cwd=ROOT,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def wait(self) -> None:
        """Waits until it serves.

        Raises:
            RuntimeError: it didn't come up.
        """
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            for line in self.log.read_bytes()[self._read :].decode().splitlines():
                if '"metrics"' in line:
                    self.metrics_port = json.loads(line)["port"]
                if '"serving"' in line:
                    self.address = json.loads(line)["address"]
                    return
            if self.running is not None and self.running.poll() is not None:
                break
            time.sleep(0.02)
        raise RuntimeError(f"{self.name} did not start:\n{self.log.read_text()[-2000:]}")

    def kill(self) -> None:
        """SIGKILL."""
        if self.running is not None:
            self.running.send_signal(signal.SIGKILL)
            self.running.wait()


@dataclass
class FakeCluster:
    """Targets, drafts and an orchestrator they are attached to; ended with the block.

    Attributes:
        options: of the orchestrator.
        own_target: whether drafts serve by themselves, too.
        reach: from a target's address to the one that drafts and orchestrator use.
    """

    targets: Sequence[Speed]
    drafts: Sequence[Speed]
    options: Sequence[str] = ()
    own_target: bool = False
    gamma: int = 4
    reach: Callable[[str], str] = str
    target: list[Process] = field(default_factory=list)
    draft: list[Process] = field(default_factory=list)
    _started: list[Process] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory()
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()

    def _start(self) -> None:
        self.target = [self._worker(f"target-{i}", "target", speed) for i, speed in enumerate(self.targets)]
        for process in self.target:
            process.wait()
        own = ["--target", self.target[0].address] if self.own_target else []
        self.draft = [self._worker(f"draft-{i}", "draft", speed, *own) for i, speed in enumerate(self.drafts)]
        for process in self.draft:
            process.wait()
        attach = [
            *(arg for p in self.target for arg in ("--attach-target", self.reach(p.address))),
            *(arg for p in self.draft for arg in ("--attach-draft", p.address)),
        ]
        command = [sys.executable, "-m", "orchestrator", "--ray-address", "none", "--log-format", "json", *attach]
        self.orchestrator = Process("orchestrator", [*command, *self.options], self._log("orchestrator"))
        self._started.insert(0, self.orchestrator)
        self.orchestrator.start()
        self.orchestrator.wait()

    def _end(self) -> None:
        for process in self._started:
            process.kill()
        self._folder.cleanup()

    def _log(self, name: str) -> Path:
        return Path(self._folder.name) / f"{name}.log"

    def _worker(self, name: str, role: str, speed: Speed, *more: str) -> Process:
        command = worker(role, speed, "--gamma", str(self.gamma), "--metrics-port", "0", *more)
        process = Process(name, command, self._log(name))
        self._started.insert(0, process)
        process.start()
        return process


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("role", choices=("target", "draft"))
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--insecure", action="store_true")
    parser.add_argument("--metrics-port", type=int)
    parser.add_argument("--keepalive", type=float, default=RpcLimits().keepalive_seconds)
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--token-delay", type=float, default=0.0)
    parser.add_argument("--noise", type=float, default=0.0)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--max-context", type=int, default=4096)
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY)
    parser.add_argument("--spread", type=float, default=1.5)
    parser.add_argument("--ahead", action=argparse.BooleanOptionalAction)
    parser.add_argument("--q-encoding", default="lattice")
    parser.add_argument("--target", default="")
    parser.add_argument("--gamma", type=int, default=4)
    return parser.parse_args()


if __name__ == "__main__":
    args = _arguments()
    logs.configure("info", "json")
    engine_speed = Speed(**{field.name: getattr(args, field.name) for field in fields(Speed)})
    limits = RpcLimits(keepalive_seconds=args.keepalive)
    listening = ListenConfig(
        host=args.host,
        port=args.port,
        insecure=args.insecure,
        limits=limits,
        grace=2.0,
        metrics_port=args.metrics_port,
    )
    more = args.target, args.gamma, args.ahead, args.q_encoding
    main(lambda: build(args.role, listening, engine_speed, *more))
