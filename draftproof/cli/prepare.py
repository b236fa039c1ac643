"""`draftproof prepare`: fetch models now rather than on the first start."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console


def run(models: list[str]) -> None:
    """Prepares each model and prints its folder.

    Raises:
        ModelLoadError: one of them can't be fetched.
    """
    from draftproof.engine import embedded
    from draftproof.engine.config import EMBEDDED
    from draftproof.engine.hub import download

    console = Console(highlight=False, soft_wrap=True)
    for model in models or [EMBEDDED]:
        if model.lower() == EMBEDDED:
            embedded.main()
        elif Path(model).expanduser().exists():
            console.print(f"{model} is here already")
        else:
            console.print(download(model))
