"""`draftproof top`: a cluster's workers and speeds, live in the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from draftproof.cli.options import Connection
from draftproof.errors import RequestError, UnsupportedError
from draftproof.rpc.channel import channel
from draftproof.rpc.status import from_rpc_error
from draftproof.v1 import orchestrator_pb2, orchestrator_pb2_grpc

_ANSWER_SECONDS = 5.0
_STATES = {
    orchestrator_pb2.WORKER_STATE_STARTING: Text("starting", "yellow"),
    orchestrator_pb2.WORKER_STATE_READY: Text("ready", "green"),
    orchestrator_pb2.WORKER_STATE_SUSPECT: Text("suspect", "bold red"),
    orchestrator_pb2.WORKER_STATE_DRAINING: Text("draining", "cyan"),
}


@dataclass(frozen=True, slots=True)
class Look:
    """What the orchestrator says at one moment.

    Attributes:
        at: seconds, monotonic.
    """

    at: float
    workers: list[orchestrator_pb2.Worker]
    stats: orchestrator_pb2.StatsResponse


def run(connection: Connection, *, interval: float, once: bool) -> None:
    """Shows the cluster until Ctrl-C; once, where that is asked for or nobody watches.

    Raises:
        RequestError: nobody answers, or it is no orchestrator.
    """
    console = Console(highlight=False)
    with _steering(connection) as stub:
        now = look(stub)
        if once or not sys.stdout.isatty():
            console.print(page(now, None))
            return
        before: Look | None = None
        with Live(page(now, before), console=console, screen=True, auto_refresh=False) as live:
            try:
                while True:
                    time.sleep(interval)
                    try:
                        before, now = now, look(stub)
                        live.update(page(now, before), refresh=True)
                    except RequestError as error:
                        waiting = Text(f"no answer: {error.message}", "bold red")
                        live.update(Group(page(now, before), waiting), refresh=True)
            except KeyboardInterrupt:
                return


def replace(connection: Connection, names: list[str]) -> None:
    """Drains workers, whose successors start by themselves.

    Raises:
        RequestError: nobody answers, it is no orchestrator, or there is no such worker.
    """
    with _steering(connection) as stub:
        for name in names:
            _ask(stub.ReplaceWorker, orchestrator_pb2.ReplaceWorkerRequest(name=name))
            print(f"{name} drains; its successor starts when it is done")


@contextmanager
def _steering(connection: Connection) -> Iterator[Any]:
    with channel(
        connection.address, tls=connection.tls_files(), token=connection.token, insecure=connection.insecure
    ) as line:
        yield orchestrator_pb2_grpc.OrchestratorServiceStub(line)


def look(stub: Any) -> Look:
    """Asks the orchestrator."""
    workers = _ask(stub.ListWorkers, orchestrator_pb2.ListWorkersRequest()).workers
    return Look(time.monotonic(), list(workers), _ask(stub.Stats, orchestrator_pb2.StatsRequest()))


def _ask(call: Any, request: Any) -> Any:
    try:
        return call(request, timeout=_ANSWER_SECONDS)
    except grpc.RpcError as error:
        failure = from_rpc_error(error)
        if isinstance(failure, UnsupportedError):
            raise UnsupportedError("this server is no orchestrator: it has no workers to show") from error
        raise failure from error


def page(now: Look, before: Look | None) -> Group:
    """One screen; figures are of the time since `before`, or since the start."""
    return Group(summary(now, before), Text(), workers(now.workers))


def summary(now: Look, before: Look | None) -> Text:
    """Requests, speed and acceptance."""
    stats = now.stats
    zero = orchestrator_pb2.StatsResponse()
    earlier = before.stats if before is not None else zero
    if earlier.committed > stats.committed:
        earlier = zero  # another orchestrator has taken its place
    seconds = now.at - before.at if before is not None else stats.uptime.ToTimedelta().total_seconds()
    committed, rounds = stats.committed - earlier.committed, stats.rounds - earlier.rounds
    drafted, accepted = stats.drafted - earlier.drafted, stats.accepted - earlier.accepted
    parts = [
        f"{stats.running} running, {stats.waiting} waiting, {stats.finished} finished",
        f"{committed / max(seconds, 1e-9):.1f} tokens/s",
        f"acceptance {accepted / drafted:.0%}" if drafted else "nothing drafted",
        f"{committed / rounds:.2f} tokens per target step" if rounds else "no rounds",
    ]
    lines = [" · ".join(parts)]
    for name, counts in (("fallbacks", stats.fallbacks), ("failed", stats.failed)):
        if counts:
            lines.append(f"{name}: " + ", ".join(f"{reason} {count}" for reason, count in sorted(counts.items())))
    return Text("\n".join(lines))


def workers(rows: list[orchestrator_pb2.Worker]) -> Table:
    """The workers, a line each."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("worker", "state", "load", "waiting", "restarts", "address", "model", ""):
        table.add_column(name, justify="right" if name in ("load", "waiting", "restarts") else "left")
    for worker in rows:
        table.add_row(
            worker.name,
            _STATES.get(worker.state, Text("unknown")),
            f"{worker.sessions}/{worker.slots}",
            str(worker.waiting),
            str(worker.restarts),
            worker.address,
            worker.fingerprint.model,
            Text(worker.problem, "yellow"),
        )
    return table
