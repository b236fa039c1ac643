"""What a model's configuration says about serving it."""

from __future__ import annotations

from transformers import PreTrainedConfig

from draftproof.errors import ModelLoadError


def refuse_unsupported(model: str, settings: PreTrainedConfig) -> None:
    """Raises what keeps a model from being served, where its configuration shows it.

    Raises:
        ModelLoadError: it is no decoder, or keeps state that can't be rolled back.
    """
    text = settings.get_text_config()
    if settings.is_encoder_decoder:
        raise ModelLoadError(f"{model} is an encoder-decoder model; only decoder-only language models can be served")
    kinds = set(getattr(text, "layer_types", None) or ()) - {"full_attention", "sliding_attention", "attention"}
    if kinds:
        raise ModelLoadError(
            f"{model} ({settings.model_type}) has {', '.join(sorted(kinds))} layers, whose state can't be rolled back;"
            " only attention over a KV cache can be served"
        )


def context_limit(settings: PreTrainedConfig) -> int | None:
    """Most tokens the model takes, where it says."""
    limit = getattr(settings, "max_position_embeddings", None)
    rope = getattr(settings, "rope_parameters", None) or {}
    for parameters in (rope, *(nested for nested in rope.values() if isinstance(nested, dict))):
        # These change their frequencies with the longest sequence of a batch: no cache of keys survives that.
        if parameters.get("rope_type") in ("dynamic", "longrope"):
            limit = parameters.get("original_max_position_embeddings") or limit
    return limit
