"""Drafts for measuring: the embedded target's first layers, untrained, and one that knows nothing at all."""

from __future__ import annotations

from pathlib import Path

from draftproof.engine.embedded import prepare
from draftproof.engine.quiet import quiet


def cut_draft(folder: Path, layers: int) -> Path:
    """Saves the target's first `layers` layers, with its embeddings, head and tokenizer; returns the folder."""
    from transformers import AutoModelForCausalLM

    with quiet():
        return _save(AutoModelForCausalLM.from_pretrained(prepare(), num_hidden_layers=layers), folder)


def garbage_draft(folder: Path) -> Path:
    """Saves one layer of random numbers with the target's tokenizer; returns the folder."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(prepare(), num_hidden_layers=1)
    with quiet():
        return _save(AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16), folder)


def _save(model: object, folder: Path) -> Path:
    from transformers import AutoTokenizer, PreTrainedModel

    assert isinstance(model, PreTrainedModel)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(prepare()).save_pretrained(folder)
    return folder
