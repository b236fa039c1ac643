"""A real cluster of processes with a real Prometheus in front of it, and the load that a test puts on it."""

from __future__ import annotations

import json
import shutil
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftproof import Client, Completion
from draftproof.client.types import Stats
from tests.e2e.processes import Launcher, Running, eventually, service
from tests.unit.deploy.prometheus import FOLDER, program

PATIENCE = 30.0
NOISES = (0.15, 0.9)
"""A good draft and a poor one."""
GAMMAS = (None, 4, 12, None, 0, 2)


@dataclass
class Live:
    """The cluster and its Prometheus.

    Attributes:
        completions: of all requests so far.
        drafts: their addresses.
        processes: target, drafts, orchestrator and Prometheus, in this order.
        began: when the load began, in Unix seconds.
    """

    address: str
    url: str
    drafts: Sequence[str]
    processes: Sequence[Running]
    completions: list[Completion] = field(default_factory=list)
    began: float = 0.0

    def query(self, expr: str, at: float | None = None) -> list[dict[str, Any]]:
        """An instant query: one item per series."""
        parameters = {"query": expr} | ({} if at is None else {"time": f"{at:.3f}"})
        return list(self._get("query", parameters)["result"])

    def query_range(self, expr: str, start: float, end: float, step: float = 1.0) -> list[dict[str, Any]]:
        """A range query: one item per series."""
        return list(self._get("query_range", {"query": expr, "start": start, "end": end, "step": step})["result"])

    def value(self, expr: str) -> float:
        """The one value of an instant query."""
        (series,) = self.query(expr)
        return float(series["value"][1])

    def load(self, requests: int, tokens: int = 64, at_once: int = 6) -> None:
        """Runs requests through the orchestrator and keeps what the SDK says of them."""
        self.began = self.began or time.time()

        def one(number: int) -> Completion:
            gamma = GAMMAS[number % len(GAMMAS)]
            with Client(self.address, timeout=60.0) as client:
                return client.generate(
                    token_ids=[1 + number % 20, 2, 3], ignore_eos=True, max_tokens=tokens, gamma=gamma
                )

        with ThreadPoolExecutor(at_once) as pool:
            self.completions += pool.map(one, range(len(self.completions), len(self.completions) + requests))

    def order(self, worker: str) -> int:
        """Where a worker stands among the drafts; others come first."""
        names = [f"draft@{address}" for address in self.drafts]
        return names.index(worker) if worker in names else -1

    @property
    def stats(self) -> list[Stats]:
        """What the SDK reports of each request."""
        return [completion.stats for completion in self.completions]

    def settle(self) -> None:
        """Waits until two scrapes of every process and an evaluation of the rules have seen all there is."""
        time.sleep(3.2)

    def _get(self, endpoint: str, parameters: dict[str, Any]) -> Any:
        body = urllib.parse.urlencode(parameters).encode()
        with urllib.request.urlopen(f"{self.url}/api/v1/{endpoint}", body, timeout=10) as response:
            answer = json.load(response)
        assert answer["status"] == "success", answer
        return answer["data"]


@contextmanager
def live(folder: Path) -> Iterator[Live]:
    """Starts everything, waits until Prometheus has seen every process twice, and stops it at the end."""
    prometheus = program("prometheus")
    with Launcher(folder) as launcher:
        target = _worker(launcher, "target")
        drafts = [_worker(launcher, "draft", str(noise)) for noise in NOISES]
        attach = [part for draft in drafts for part in ("--attach-draft", draft.address)]
        orchestrator = launcher.start(
            "orchestrator",
            service(
                "orchestrator",
                *("--ray-address", "none", "--port", "0", "--metrics-port", "0", "--probe-interval", "0.2"),
                *("--attach-target", target.address, *attach),
            ),
        )
        port = orchestrator.event("metrics")["port"]
        url = _prometheus(launcher, prometheus, port, folder)
        cluster = Live(orchestrator.address, url, [d.address for d in drafts], launcher.running)
        whole = lambda: [s["value"][1] for s in _answers(cluster, "up == 1")] == ["1"] * (2 + len(drafts))  # noqa: E731
        assert eventually(whole, PATIENCE), launcher.running[-1].tail()
        cluster.settle()
        yield cluster


def _worker(launcher: Launcher, role: str, *arguments: str) -> Running:
    command = [sys.executable, "-m", "tests.integration.prometheus.serve", role, *arguments]
    return launcher.start(role, command)


def _prometheus(launcher: Launcher, prometheus: str, port: int, folder: Path) -> str:
    """Starts Prometheus with the committed configuration, scraping every second; returns its URL."""
    copy = folder / "prometheus"
    shutil.copytree(FOLDER, copy)
    config = copy / "prometheus.yml"
    text = config.read_text().replace("orchestrator:9464", f"127.0.0.1:{port}")
    for setting in ("scrape_interval", "scrape_timeout", "evaluation_interval", "refresh_interval"):
        text = "\n".join(f"{line.split(':')[0]}: 1s" if f"{setting}:" in line else line for line in text.split("\n"))
    config.write_text(text)
    # port 0: a free one, which its log names
    running = launcher.start(
        "prometheus",
        [
            prometheus,
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'tsdb'}",
            "--web.listen-address=127.0.0.1:0",
            "--log.format=json",
        ],
    )
    found: list[str] = []

    def listening() -> bool:
        for line in running.log.read_text().splitlines():
            if '"msg":"Listening on"' in line:
                found.append(json.loads(line)["address"])
        return bool(found)

    assert eventually(listening, PATIENCE), running.tail()
    url = f"http://{found[0]}"

    def ready() -> bool:
        try:
            with urllib.request.urlopen(f"{url}/-/ready", timeout=2) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    assert eventually(ready, PATIENCE), running.tail()
    return url


def _answers(cluster: Live, expr: str) -> list[dict[str, Any]]:
    try:
        return cluster.query(expr)
    except OSError:
        return []
