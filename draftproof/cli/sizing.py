"""The command that sizes a cluster: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_COSTS = "What the parts cost"
_LINK = "Between draft and target"
_LOAD = "Load and workers"


def plan(
    draft_step_ms: Annotated[
        float | None, typer.Option(min=0.0, help="A step of the draft for one sequence.", rich_help_panel=_COSTS)
    ] = None,
    draft_row_ms: Annotated[
        float | None, typer.Option(min=0.0, help="More for each further sequence; unset: 0.", rich_help_panel=_COSTS)
    ] = None,
    pass_ms: Annotated[
        float | None, typer.Option(min=0.0, help="A pass of the target, whatever is in it.", rich_help_panel=_COSTS)
    ] = None,
    token_ms: Annotated[
        float | None, typer.Option(min=0.0, help="More for each token in the pass; unset: 0.", rich_help_panel=_COSTS)
    ] = None,
    overhead_ms: Annotated[
        float | None,
        typer.Option(min=0.0, help="Of a round outside both models; unset: 1.", rich_help_panel=_COSTS),
    ] = None,
    shared: Annotated[
        bool | None,
        typer.Option("--shared/--apart", help="Draft and target on the same cores.", rich_help_panel=_COSTS),
    ] = None,
    alpha: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="Acceptance of a proposal.", rich_help_panel=_COSTS)
    ] = None,
    acceptance: Annotated[
        str | None,
        typer.Option(
            help="In place of --alpha: by offset, given that all before held, 0.8,0.75,…", rich_help_panel=_COSTS
        ),
    ] = None,
    guess: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="Chance that the draft guesses the bonus token; unset: like a proposal."),
    ] = None,
    rtt_ms: Annotated[float, typer.Option(min=0.0, help="Round trip.", rich_help_panel=_LINK)] = 0.0,
    bandwidth_mbit: Annotated[
        float | None, typer.Option(min=0.001, help="Mbit/s of a draft's link; unset: no limit.", rich_help_panel=_LINK)
    ] = None,
    vocab: Annotated[int, typer.Option(min=2, help="Tokens of the vocabulary.", rich_help_panel=_LINK)] = 49_152,
    streams: Annotated[int, typer.Option(min=1, help="Requests at once.", rich_help_panel=_LOAD)] = 1,
    targets: Annotated[int, typer.Option(min=1, help="Target workers.", rich_help_panel=_LOAD)] = 1,
    drafts: Annotated[
        int | None, typer.Option(min=1, help="Draft workers; unset: as few as do.", rich_help_panel=_LOAD)
    ] = None,
    max_gamma: Annotated[int, typer.Option(min=0, max=64, help="Most proposals a round.", rich_help_panel=_LOAD)] = 16,
    measure: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Fill the costs from a running cluster; takes about a minute."),
    ] = None,
    temperature: Annotated[float, typer.Option(min=0.0, help="For --measure: of the requests.")] = 0.0,
    file: Annotated[
        Path | None, typer.Option("--from", help="Fill the costs from a file: of --save, or a bench's JSON.")
    ] = None,
    save: Annotated[Path | None, typer.Option(help="Write the costs that were used to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object in place of tables.")] = False,
) -> None:
    """Size a cluster before renting it: best gamma, encoding, drafts per target, tokens/s, and what limits them.

    Example: a 70B target whose pass takes 38 ms and 0.05 ms more for each token, a 1B draft of 4 ms a step that agrees
    in three of four places, 10 ms apart, for 32 users:

    draftproof plan --pass-ms 38 --token-ms 0.05 --draft-step-ms 4 --alpha 0.75 --rtt-ms 10 --bandwidth-mbit 1000
    --vocab 128256 --streams 32

    Options win over what --measure or --from says. The formulae are in docs/plan.md.
    """
    from draftproof.cli import plan as command

    given = {
        "draft_step": draft_step_ms,
        "draft_row": draft_row_ms,
        "pass_base": pass_ms,
        "pass_token": token_ms,
        "overhead": overhead_ms,
    }
    command.run(
        costs={name: value / 1e3 for name, value in given.items() if value is not None},
        shared=shared,
        acceptance=command.acceptance(alpha, acceptance),
        guess=guess,
        rtt=rtt_ms / 1e3,
        bandwidth=bandwidth_mbit and 1e6 * bandwidth_mbit,
        vocabulary=vocab,
        streams=streams,
        targets=targets,
        drafts=drafts,
        largest=max_gamma,
        measure=measure,
        temperature=temperature,
        file=file,
        save=save,
        as_json=as_json,
    )
