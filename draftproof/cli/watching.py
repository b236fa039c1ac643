"""Commands that look after a cluster: their options."""

from __future__ import annotations

from typing import Annotated

import typer

from draftproof.cli import options
from draftproof.cli.using import DEFAULT_ADDRESS


def top(
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit; so it does without a terminal.")] = False,
    address: options.Address = DEFAULT_ADDRESS,
    tls: options.Tls = False,
    tls_ca: options.TlsCa = None,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    token: options.Token = None,
    insecure: options.Insecure = False,
) -> None:
    """Show a cluster's workers, speed and acceptance, live. Ctrl-C leaves."""
    from draftproof.cli import top as command

    connection = options.Connection(
        address=address, tls=tls, tls_ca=tls_ca, tls_cert=tls_cert, tls_key=tls_key, token=token, insecure=insecure
    )
    command.run(connection, interval=interval, once=once)


def replace(
    workers: Annotated[list[str], typer.Argument(help="Names as `draftproof top` shows them.")],
    address: options.Address = DEFAULT_ADDRESS,
    tls: options.Tls = False,
    tls_ca: options.TlsCa = None,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    token: options.Token = None,
    insecure: options.Insecure = False,
) -> None:
    """Drain workers and start their successors: requests go on elsewhere."""
    from draftproof.cli import top as command

    connection = options.Connection(
        address=address, tls=tls, tls_ca=tls_ca, tls_cert=tls_cert, tls_key=tls_key, token=token, insecure=insecure
    )
    command.replace(connection, workers)


def update_weights(
    target: Annotated[
        str | None, typer.Argument(help="Safetensors file or folder for the targets, as the servers see it.")
    ] = None,
    draft: Annotated[str | None, typer.Option(help="The same for the drafts.")] = None,
    running: Annotated[
        str,
        typer.Option(help="What running requests do: finish under the old weights, or restart."),
    ] = "finish",
    upload: Annotated[bool, typer.Option("--upload", help="Send files of this machine; single files alone.")] = False,
    address: options.Address = DEFAULT_ADDRESS,
    tls: options.Tls = False,
    tls_ca: options.TlsCa = None,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    token: options.Token = None,
    insecure: options.Insecure = False,
    timeout: options.Timeout = 600.0,
) -> None:
    """Change the weights of running servers, of a whole cluster or of one."""
    from draftproof.cli import weights as command

    connection = options.Connection(
        address=address,
        tls=tls,
        tls_ca=tls_ca,
        tls_cert=tls_cert,
        tls_key=tls_key,
        token=token,
        insecure=insecure,
        timeout=timeout,
    )
    command.run(connection, target, draft, running=running, upload=upload)
