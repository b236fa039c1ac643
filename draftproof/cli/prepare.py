"""`draftproof prepare`: fetch models now rather than on the first start."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from draftproof.errors import ModelLoadError

# weights in one format, tokenizer and settings; not the copies for other frameworks
_PATTERNS = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja"]


def run(models: list[str]) -> None:
    """Prepares each model and prints its folder.

    Raises:
        ModelLoadError: one of them can't be fetched.
    """
    from draftproof.engine import embedded
    from draftproof.engine.config import EMBEDDED

    console = Console(highlight=False, soft_wrap=True)
    for model in models or [EMBEDDED]:
        if model.lower() == EMBEDDED:
            embedded.main()
        elif Path(model).expanduser().exists():
            console.print(f"{model} is here already")
        else:
            console.print(_download(model))


def _download(model: str) -> str:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        return str(snapshot_download(model, allow_patterns=_PATTERNS))
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise ModelLoadError(
            f"{model} can't be downloaded: it is no local folder, and the Hugging Face hub has no such model or can't"
            " be reached; check the spelling and the network"
        ) from error
