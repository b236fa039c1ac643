"""Models of the Hugging Face hub, fetched before they are needed."""

from __future__ import annotations

from draftproof.errors import ModelLoadError

# weights in one format, tokenizer and settings; not the copies for other frameworks
_PATTERNS = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja"]


def download(model: str) -> str:
    """Fetches a model with a progress bar; returns its folder.

    Raises:
        ModelLoadError: there is none of that name, or the hub can't be reached.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        return str(snapshot_download(model, allow_patterns=_PATTERNS))
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise ModelLoadError(
            f"{model} can't be downloaded: it is no local folder, and the Hugging Face hub has no such model or can't"
            " be reached; check the spelling and the network"
        ) from error
