"""A student for distillation: some of a target's layers as a model of its own."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedConfig, PreTrainedModel

from draftproof.errors import ConfigError

LAYER: Final = re.compile(r"\.(layers|h)\.(\d+)\.")
"""Where a weight's name tells its layer."""


def cut_config(config: PreTrainedConfig, layers: Sequence[int]) -> PreTrainedConfig:
    """The target's configuration with these of its layers alone.

    Raises:
        ConfigError: a layer that the target doesn't have.
    """
    config = copy.deepcopy(config)
    text: Any = config.get_text_config()
    if not layers or not all(0 <= layer < text.num_hidden_layers for layer in layers):
        raise ConfigError("layers", f"must name layers in [0, {text.num_hidden_layers}), got {list(layers)}")
    if kinds := getattr(text, "layer_types", None):
        text.layer_types = [kinds[layer] for layer in layers]
    text.num_hidden_layers = len(layers)
    return config


def cut(target: PreTrainedModel, layers: Sequence[int]) -> PreTrainedModel:
    """A float32 model of these of the target's layers, in this order; everything beside the layers is the target's.

    It is in evaluation mode, where it stays: a distilled model has no use for dropout.

    Raises:
        ConfigError: a layer that the target doesn't have.
    """
    student: PreTrainedModel = AutoModelForCausalLM.from_config(
        cut_config(target.config, layers), dtype=torch.float32, attn_implementation="sdpa"
    )
    weights: dict[str, Tensor] = target.state_dict()

    def source(name: str) -> str:
        return LAYER.sub(lambda match: f".{match[1]}.{layers[int(match[2])]}.", name, count=1)

    student.load_state_dict({name: weights[source(name)].float() for name in student.state_dict()})
    ready: PreTrainedModel = student.eval()
    return ready


def hidden(student: PreTrainedModel, token_ids: Tensor) -> Tensor:
    """What the student's head would get: normed hidden states [B, n, H] of token ids [B, n]."""
    states: Tensor = student.get_decoder()(input_ids=token_ids, use_cache=False).last_hidden_state
    return states


def save_tokenizer(location: str, folder: Path) -> None:
    """Copies a model's tokenizer and its end-of-sequence ids, so that the folder needs the model no more."""
    AutoTokenizer.from_pretrained(location).save_pretrained(str(folder))
    with suppress(OSError):
        GenerationConfig.from_pretrained(location).save_pretrained(str(folder))
