"""`draftproof update-weights`: other weights for running servers."""

from __future__ import annotations

from typing import Literal, cast

import typer

from draftproof.cli.options import Connection


def run(connection: Connection, target: str | None, draft: str | None, *, running: str, upload: bool) -> None:
    """Updates, and says of each server what it has now.

    Raises:
        RequestError: no server has taken the weights.
        typer.Exit: some have not.
    """
    with connection.client() as client:
        mode = cast(Literal["finish", "restart"], running)  # the SDK checks it
        servers = client.update_weights(target, draft, running=mode, upload=upload)
    for server in servers:
        name = server.name or connection.address
        if server.problem:
            print(f"{name} keeps version {server.weights_version}: {server.problem}")
            continue
        restarted = f", {server.restarted} sessions went on" if server.restarted else ""
        print(f"{name} has version {server.weights_version} ({server.weights_sha256.hex()[:16]}){restarted}")
    if any(server.problem for server in servers):
        raise typer.Exit(1)
