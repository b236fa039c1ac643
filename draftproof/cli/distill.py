"""`draftproof distill`: makes a draft for a target, and says how well it drafts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from draftproof.errors import ConfigError

if TYPE_CHECKING:
    from draftproof.distill.measure import Acceptance

_Number = TypeVar("_Number", int, float)


def numbers(name: str, words: str, kind: Callable[[str], _Number]) -> tuple[_Number, ...]:
    """Numbers with commas between them.

    Raises:
        ConfigError: something else.
    """
    try:
        return tuple(kind(word) for word in words.split(","))
    except ValueError:
        raise ConfigError(name, f"must be numbers with commas between them, got {words!r}") from None


def run(*, out: Path, steps: int, batch_tokens: int, lr: float, seed: int, **settings: Any) -> None:
    """Distils, with a progress bar, and prints the acceptance on texts that were held out.

    Raises:
        ConfigError: settings that don't fit the target or the work folder.
        ModelLoadError: the target can't be loaded.
        UnsupportedError: the target can't be distilled.
    """
    from draftproof.distill.run import DistillConfig, distill
    from draftproof.distill.training import TrainingConfig

    training = TrainingConfig(seed=seed, steps=steps, batch_tokens=batch_tokens, lr=lr)
    config = DistillConfig(out=out, training=training, **settings)
    columns = (
        TextColumn("{task.description:<9}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[words]}"),
    )
    console = Console(highlight=False)
    with Progress(*columns, console=console) as bars:
        tasks: dict[str, Any] = {}

        def report(stage: str, done: int, total: int, words: str) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, words=words)
            bars.update(tasks[stage], completed=done, total=total, words=words)

        found = distill(config, report)
    console.print(table(found))
    console.print(f"draft: {out}, served by: python -m draft_service --drafter model --model {out}", soft_wrap=True)


def table(results: Sequence[Acceptance]) -> Table:
    """Acceptance by temperature and position."""
    shown = Table(title="acceptance on held-out texts, by position in a block", title_justify="left")
    for heading in ("T", "Σ min(p, q)", "same top token", "in head"):
        shown.add_column(heading, justify="right")
    for position in range(len(results[0].by_position) if results else 0):
        shown.add_column(str(position + 1), justify="right")
    for found in results:
        cells = (found.alpha, found.agreement, found.reached, *found.by_position)
        shown.add_row(f"{found.temperature:g}", *(f"{cell:.3f}" for cell in cells))
    return shown
