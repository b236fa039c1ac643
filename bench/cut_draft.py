"""A draft cut from the embedded target: its first layers, untrained. For measuring rounds, not for drafting well."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

from draftproof.engine.embedded import prepare


def cut_draft(folder: Path, layers: int) -> Path:
    """Saves the target's first `layers` layers, with its embeddings, head and tokenizer; returns the folder."""
    source = prepare()
    model = AutoModelForCausalLM.from_pretrained(source, num_hidden_layers=layers)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return folder
