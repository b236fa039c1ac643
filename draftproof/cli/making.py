"""Commands that make models: their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_DRAFT = "Draft"
_TEXTS = "Texts"
_TRAINING = "Training"


def distill(
    target: Annotated[
        str, typer.Argument(help="Hugging Face id or folder of the target.", show_default=True)
    ] = "smollm2-135m-instruct",
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the draft.")] = Path("draft"),
    layers: Annotated[
        str, typer.Option(help="Layers of the target that make the draft; -1 is the last.", rich_help_panel=_DRAFT)
    ] = "0,1",
    head: Annotated[int, typer.Option(min=1, help="Tokens that the draft can propose.", rich_help_panel=_DRAFT)] = 8192,
    train_head: Annotated[
        bool,
        typer.Option(
            "--train-head",
            help="Train rows of the draft's own rather than a map in front of the target's.",
            rich_help_panel=_DRAFT,
        ),
    ] = False,
    tokens: Annotated[
        int, typer.Option(min=1, help="Tokens that the target writes.", rich_help_panel=_TEXTS)
    ] = 500_000,
    text: Annotated[
        Path | None, typer.Option(help="Learn from this file instead; UTF-8.", rich_help_panel=_TEXTS)
    ] = None,
    temperatures: Annotated[
        str, typer.Option(help="Temperatures of the target's answers, by turns.", rich_help_panel=_TEXTS)
    ] = "1,0.7,1,0.7,0",
    slots: Annotated[int, typer.Option(min=1, help="Texts written at once.", rich_help_panel=_TEXTS)] = 96,
    max_length: Annotated[int, typer.Option(min=8, help="Most tokens of a text.", rich_help_panel=_TEXTS)] = 448,
    rounds: Annotated[
        int, typer.Option(min=1, help="How often writing and training take turns.", rich_help_panel=_TEXTS)
    ] = 1,
    steps: Annotated[int, typer.Option(min=1, help="Steps of the schedule.", rich_help_panel=_TRAINING)] = 1000,
    minutes: Annotated[
        float | None, typer.Option(help="Train for about so long instead of --steps.", rich_help_panel=_TRAINING)
    ] = None,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a step.", rich_help_panel=_TRAINING)] = 4096,
    lr: Annotated[float, typer.Option(help="Highest learning rate.", rich_help_panel=_TRAINING)] = 1.5e-3,
    seed: Annotated[int, typer.Option(min=0, help="Of texts and their order.")] = 0,
    work: Annotated[
        Path | None, typer.Option(help="Folder of texts and checkpoints; unset: OUT.work.", show_default=False)
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where an earlier run stopped.")] = False,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.")] = None,
) -> None:
    """Make a draft for a target: the target writes texts, a few of its layers learn to write them too.

    Ctrl-C stops; the same command with --resume goes on. A draft of more layers accepts more and costs more.
    """
    from draftproof.cli import distill as command

    command.run(
        target=target,
        out=out,
        work=work or out.with_name(out.name + ".work"),
        layers=command.numbers("layers", layers, int),
        temperatures=command.numbers("temperatures", temperatures, float),
        head=head,
        train_head=train_head,
        tokens=tokens,
        text=text,
        slots=slots,
        max_length=max_length,
        rounds=rounds,
        steps=steps,
        minutes=minutes,
        batch_tokens=batch_tokens,
        lr=lr,
        seed=seed,
        resume=resume,
        threads=threads,
    )
