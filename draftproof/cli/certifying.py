"""The command that certifies a cluster: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftproof.cli import options
from draftproof.cli.using import DEFAULT_ADDRESS

_WHAT = "What is tested"
_HOW = "How hard"
_OUT = "Report"


def certify(
    endpoint: Annotated[
        str, typer.Argument(metavar="HOST:PORT", help="A cluster's front door, or a draft server with its target.")
    ] = DEFAULT_ADDRESS,
    rule: Annotated[
        list[str] | None,
        typer.Option(help="Rules, may be repeated; unset: block, token, coupled.", rich_help_panel=_WHAT),
    ] = None,
    lenience: Annotated[float | None, typer.Option(help="Of lossy rules.", rich_help_panel=_WHAT)] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PRESET|NAME=VALUE,…",
            help="Sampling settings, may be repeated; unset: plain, top-p, min-p, penalties, bias.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    every: Annotated[
        bool, typer.Option("--every", help="Every setting under every rule.", rich_help_panel=_WHAT)
    ] = False,
    prompt: Annotated[
        list[str] | None, typer.Option(help="Texts to continue, may be repeated.", rich_help_panel=_WHAT)
    ] = None,
    gamma: Annotated[
        int, typer.Option(min=0, max=64, help="Proposals a round; one token more is tested.", rich_help_panel=_WHAT)
    ] = 2,
    tv: Annotated[
        float,
        typer.Option(min=0.001, max=0.999, help="Total variation that must not go unseen.", rich_help_panel=_HOW),
    ] = 0.05,
    power: Annotated[
        float, typer.Option(min=0.5, max=0.9999, help="Chance with which it is seen.", rich_help_panel=_HOW)
    ] = 0.99,
    alpha: Annotated[
        float,
        typer.Option(
            min=1e-9, max=0.5, help="Chance that an exact cluster fails, all tests together.", rich_help_panel=_HOW
        ),
    ] = 0.001,
    samples: Annotated[
        int | None,
        typer.Option(min=100, help="Continuations of each case, whatever --tv asks for.", rich_help_panel=_HOW),
    ] = None,
    prefixes: Annotated[
        int, typer.Option(min=1, max=4096, help="Prefixes at which p is asked for.", rich_help_panel=_HOW)
    ] = 24,
    cells: Annotated[
        int, typer.Option(min=2, max=100_000, help="Likeliest outcomes that stand alone.", rich_help_panel=_HOW)
    ] = 64,
    streams: Annotated[
        int | None, typer.Option(min=1, help="Requests at once; unset: the server's slots.", rich_help_panel=_HOW)
    ] = None,
    numerics: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Also compare served p with this model's in float32, loaded here.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for report.md, report.json and figures.", rich_help_panel=_OUT)
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="The report as one HTML file, figures within.", rich_help_panel=_OUT)
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on stdout in place of tables.", rich_help_panel=_OUT)
    ] = False,
    tls: options.Tls = False,
    tls_ca: options.TlsCa = None,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    token: options.Token = None,
    insecure: options.Insecure = False,
    timeout: options.Timeout = 600.0,
) -> None:
    """Check from outside that a cluster's output follows its target's law.

    Asks the target for p at the likeliest prefixes, samples continuations through the whole cluster and tests them.
    Exit codes: 0 passed, 1 failed, 2 could not run, or no proposal came to be tested. docs/certify.md says what
    that proves.
    """
    from draftproof.cli import certify as command

    command.run(
        options.Connection(
            address=endpoint,
            tls=tls,
            tls_ca=tls_ca,
            tls_cert=tls_cert,
            tls_key=tls_key,
            token=token,
            insecure=insecure,
            timeout=timeout,
        ),
        command.Wanted(
            rules=tuple(rule or command.RULES),
            lenience=lenience,
            settings=tuple(setting or ()),
            every=every,
            prompts=tuple(prompt or ()),
            gamma=gamma,
            tv=tv,
            power=power,
            alpha=alpha,
            samples=samples,
            prefixes=prefixes,
            cells=cells,
            streams=streams,
            numerics=numerics,
        ),
        out=out,
        html=html,
        as_json=as_json,
    )
