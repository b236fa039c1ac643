"""`draftproof up`: target and draft on this machine, until Ctrl-C."""

from __future__ import annotations

from rich.console import Console

from draftproof.cli import health
from draftproof.cli.services import LocalServices
from draftproof.cli.stack import Interrupted, Stack, parse
from draftproof.errors import RequestError

_COMMON = ("event", "level", "timestamp", "logger")


def run(services: LocalServices, *, wait: float, logs: bool) -> None:
    """Starts both, says where they are, and stops them on SIGINT or SIGTERM.

    Raises:
        DraftproofError: a port is taken, or a service didn't start or stopped by itself.
    """
    console = Console(highlight=False)
    health.require_free("127.0.0.1", services.target_port, "--target-port")
    health.require_free(services.host, services.port, "--port")
    services.prepare_model()
    patience = (30.0 if services.grace is None else services.grace) + 10.0
    relay = Relay(console, logs)
    with Stack(relay, patience) as stack:
        try:
            target, draft = start(stack, services, wait, console)
        except Interrupted:
            return
        relay.running = True
        console.print(f"target  {target}  {services.model or 'smollm2-135m-instruct'}", style="bold")
        console.print(f"draft   {draft}  clients talk to this one", style="bold")
        console.print('try     draftproof generate "The sea is"     Ctrl-C stops both', style="dim")
        stack.watch()
        console.print("stopping: running requests get time to finish; Ctrl-C again ends them at once", style="dim")
    console.print("stopped", style="dim")


def start(stack: Stack, services: LocalServices, wait: float, console: Console) -> tuple[str, str]:
    """Starts target, then draft; returns their addresses.

    Raises:
        ServiceError: one of them didn't start.
        Interrupted: the user asked to stop.
    """
    with console.status("starting the target: loading its model"):
        target = stack.wait_serving(stack.start(services.target()), wait, is_healthy)
    # With a certificate, asking takes a name that this process doesn't know: the service's own word must do.
    healthy = is_healthy if services.tls_cert is None else (lambda address: True)
    with console.status("starting the draft"):
        draft = stack.wait_serving(stack.start(services.draft(target)), wait, healthy)
    return target, draft


def is_healthy(address: str) -> bool:
    """Whether a local server says SERVING."""
    host, _, port = address.rpartition(":")
    reachable = f"127.0.0.1:{port}" if host in ("0.0.0.0", "[::]") else address
    try:
        return health.check(reachable, insecure=True)
    except RequestError:
        return False


class Relay:
    """Shows the children's log lines: all of them, or warnings and worse once everything runs.

    What goes wrong before that ends in one error that says the same.
    """

    def __init__(self, console: Console, everything: bool) -> None:
        self._console = console
        self._everything = everything
        self.running = False

    def __call__(self, name: str, line: str) -> None:
        if self._everything:
            self._console.print(f"{name:<7} {line}", markup=False, soft_wrap=True, style="dim")
            return
        record = parse(line)
        level = record.get("level")
        if self.running and level in ("warning", "error", "critical"):
            facts = " ".join(f"{key}={value}" for key, value in record.items() if key not in _COMMON)
            self._console.print(
                f"{name:<7} {level}: {record.get('event')} {facts}", markup=False, soft_wrap=True, style="yellow"
            )
