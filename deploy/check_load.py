"""Requests against a cluster in containers, for check_compose.sh; every step ends or fails within its time limit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from draftproof import Client
from draftproof.client.types import Completion
from draftproof.rpc.channel import channel
from draftproof.v1 import orchestrator_pb2, orchestrator_pb2_grpc

ADDRESS = f"127.0.0.1:{os.environ.get('DRAFTPROOF_PORT', '7500')}"
PROMETHEUS = f"http://127.0.0.1:{os.environ.get('PROMETHEUS_PORT', '9090')}/api/v1/query"
TOKEN = os.environ.get("DRAFTPROOF_TOKEN")
LIMIT_SECONDS = 300.0
# it repeats itself, so that prompt lookup has something to propose
PROMPT = "one two three four five six seven eight nine ten, " * 3 + "one two three"


def ready(role: str, count: str) -> None:
    """Waits until that many workers of the role are ready."""

    def enough() -> list[str] | None:
        with channel(ADDRESS, token=TOKEN) as line:
            stub = orchestrator_pb2_grpc.OrchestratorServiceStub(line)
            listed = stub.ListWorkers(orchestrator_pb2.ListWorkersRequest(), timeout=5.0)
        kind = orchestrator_pb2.WorkerRole.Value(f"WORKER_ROLE_{role.upper()}")
        there = [
            worker.name
            for worker in listed.workers
            if worker.role == kind and worker.state == orchestrator_pb2.WORKER_STATE_READY
        ]
        return there if len(there) == int(count) else None

    print(f"ready: {', '.join(_until(enough))}")


def stream() -> None:
    """Text, chunk by chunk, some of it proposed by a draft."""
    with Client(ADDRESS, token=TOKEN, timeout=LIMIT_SECONDS) as client:
        done, chunks = _one(client, 64, lambda: None)
    print(f"{chunks} chunks, {done.stats.drafted} drafted, {done.stats.accepted} accepted: {done.text[:60]!r}…")
    assert chunks > 1, "it came in one piece"
    assert done.stats.drafted > 0, "no draft took part"


def disturbed(count: str, *command: str) -> None:
    """Streams that all complete although the command does its harm while each of them runs."""
    streams = int(count)
    running = threading.Barrier(streams + 1)
    with (
        Client(ADDRESS, token=TOKEN, timeout=LIMIT_SECONDS) as client,
        ThreadPoolExecutor(streams) as pool,
    ):
        futures = [pool.submit(_one, client, 600, lambda: running.wait(LIMIT_SECONDS)) for _ in range(streams)]
        running.wait(LIMIT_SECONDS)
        subprocess.run(command, check=True, timeout=60)
        begun = time.monotonic()
        texts = [future.result(LIMIT_SECONDS)[0].text for future in futures]
    print(f"{streams} of {streams} streams completed, the last {time.monotonic() - begun:.1f} s after the kill")
    print(f"{len(set(texts))} different greedy text(s)")


def scraped() -> None:
    """Prometheus reaches the processes, and knows of the requests and of the fallback."""

    def there() -> list[Any] | None:
        found = {result["metric"]["job"] for result in _query("sum by (job) (up == 1)")}
        return _query("sum by (reason) (draftproof_cluster_fallbacks_total) > 0") if len(found) >= 3 else None

    fallbacks = _until(there)
    print("fallbacks: " + ", ".join(f"{each['metric']['reason']} {each['value'][1]}" for each in fallbacks))
    print("accepted: " + _query("sum(draftproof_spec_decode_num_accepted_tokens_total)")[0]["value"][1])


def _one(client: Client, tokens: int, begun: Callable[[], object]) -> tuple[Completion, int]:
    """One greedy request of a fixed length, and how many chunks it came in."""
    chunks = 0
    with client.stream(PROMPT, temperature=0.0, max_tokens=tokens, ignore_eos=True) as stream:
        for _ in stream:
            chunks += 1
            if chunks == 1:
                begun()
        done = stream.completion
    assert done.usage.completion_tokens == len(done.tokens) == tokens, "a token is missing or came twice"
    assert "".join(token.text for token in done.tokens) == done.text
    return done, chunks


def _query(expression: str) -> list[Any]:
    with urllib.request.urlopen(f"{PROMETHEUS}?{urllib.parse.urlencode({'query': expression})}", timeout=10) as answer:
        found: list[Any] = json.load(answer)["data"]["result"]
    return found


def _until(look: Callable[[], list[Any] | None]) -> list[Any]:
    end = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < end:
        if found := look():
            return found
        time.sleep(1)
    raise SystemExit("not within the time limit")


if __name__ == "__main__":
    {"ready": ready, "stream": stream, "disturbed": disturbed, "scraped": scraped}[sys.argv[1]](*sys.argv[2:])
