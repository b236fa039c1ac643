"""`draftproof up`: a cluster on this machine, until Ctrl-C."""

from __future__ import annotations

from rich.console import Console

from draftproof.cli import health
from draftproof.cli.cluster import LocalCluster, Progress
from draftproof.cli.stack import Stack, parse

_COMMON = ("event", "level", "timestamp", "logger")


def run(cluster: LocalCluster, *, wait: float, logs: bool) -> None:
    """Starts it, says where it is, and stops it on SIGINT or SIGTERM.

    Raises:
        DraftproofError: the port is taken, or something didn't start or stopped by itself.
        Interrupted: the user asked to stop before it had started.
    """
    console = Console(highlight=False)
    health.require_free(cluster.host, cluster.port, "--port")
    cluster.prepare_model()
    patience = (30.0 if cluster.grace is None else cluster.grace) + 10.0
    relay = Relay(console, logs, Progress(cluster.targets, cluster.drafts))
    with Stack(relay, patience) as stack:
        address = start(stack, cluster, relay, wait, console)
        console.print(f"serving {cluster.model or 'smollm2-135m-instruct'} at {address}", style="bold")
        console.print('try     draftproof generate "The sea is"    draftproof top    Ctrl-C stops all', style="dim")
        stack.watch()
        console.print("stopping: running requests get time to finish; Ctrl-C again ends them at once", style="dim")
    console.print("stopped", style="dim")


def start(stack: Stack, cluster: LocalCluster, relay: Relay, wait: float, console: Console) -> str:
    """Starts the cluster and waits until all its workers are ready; returns the front door's address.

    Raises:
        ServiceError: it didn't start.
        Interrupted: the user asked to stop.
    """
    doing = "starting Ray, then the workers: loading models"
    if not console.is_terminal:
        console.print(doing)  # a file shows no spinner
    with console.status(doing):
        address = stack.wait_serving(stack.start(cluster.service()), wait, relay.progress.is_complete)
    relay.running = True
    return address


class Relay:
    """Shows the cluster's log lines: all of them, or warnings and worse once everything runs.

    What goes wrong before that ends in one error that says the same.
    """

    def __init__(self, console: Console, everything: bool, progress: Progress) -> None:
        self.progress = progress
        self._console = console
        self._everything = everything
        self.running = False

    def __call__(self, name: str, line: str) -> None:
        record = parse(line)
        self.progress.take(record)
        if not (self._everything or self.running or self._console.is_terminal) and record.get("event") == "worker":
            self._console.print(f"{record.get('worker')} {record.get('state')}", markup=False, soft_wrap=True)
        if self._everything:
            self._console.print(f"{name:<7} {line}", markup=False, soft_wrap=True, style="dim")
            return
        level = record.get("level")
        if self.running and level in ("warning", "error", "critical"):
            facts = " ".join(f"{key}={value}" for key, value in record.items() if key not in _COMMON)
            self._console.print(
                f"{name:<7} {level}: {record.get('event')} {facts}", markup=False, soft_wrap=True, style="yellow"
            )
