"""The `draftproof` command: its subcommands, and one way to report errors."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from draftproof.cli import certifying, making, running, sizing, using, watching
from draftproof.errors import DraftproofError
from draftproof.version import VERSION

cli = typer.Typer(
    name="draftproof",
    help="Speculative decoding across machines whose output law is exactly the target model's.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with [bold]draftproof demo[/bold], or [bold]draftproof up[/bold] and, in another terminal, "
    "[bold]draftproof chat[/bold]. Exit codes: 0 done, 1 failed, 2 called wrongly.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(VERSION)
        raise typer.Exit


@cli.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the release and exit.")
    ] = False,
) -> None:
    """Common to all commands."""


for _command in (
    running.up,
    running.demo,
    running.prepare,
    using.generate,
    using.chat,
    using.doctor,
    sizing.plan,
    certifying.certify,
    watching.top,
    watching.replace,
    making.distill,
    watching.update_weights,
):
    cli.command()(_command)


def main() -> None:
    """Entry point: errors are one line, and what to do."""
    try:
        cli()
    except DraftproofError as error:
        from draftproof.cli import report

        report.show_error(error)
        sys.exit(report.exit_code(error))


if __name__ == "__main__":
    main()
