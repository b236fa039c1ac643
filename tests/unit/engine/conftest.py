"""Tiny random models on disk, and the plain transformers forward they are compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from draftproof.engine.config import ModelConfig
from draftproof.engine.engine import TransformersEngine
from draftproof.engine.interface import Engine
from draftproof.engine.loading import load_engine
from tests.tiny_gguf import needs_llamacpp, write_gguf

VOCAB = 89
PADDED = 96

_SMALL = {
    "vocab_size": PADDED,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.3,
}
_GPT2 = {"vocab_size": PADDED, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "initializer_range": 0.3}

KINDS: dict[str, dict[str, object]] = {
    "llama": {**_SMALL, "model_type": "llama"},
    "qwen2": {**_SMALL, "model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": {**_SMALL, "model_type": "qwen3"},
    "gpt2": {**_GPT2, "model_type": "gpt2", "bos_token_id": 1, "eos_token_id": 2},
    "mistral-window": {**_SMALL, "model_type": "mistral", "sliding_window": 7},
    "qwen2-mixed-window": {
        **_SMALL,
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 5,
        "max_window_layers": 1,
    },
    "qwen3-moe": {
        **_SMALL,
        "model_type": "qwen3_moe",
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
    },
}


LLAMACPP = "llama.cpp "
LLAMACPP_KINDS = [pytest.param(LLAMACPP + kind, marks=needs_llamacpp) for kind in ("llama", "qwen2", "qwen3")]


class FixedVocabulary:
    """Just enough of a tokenizer for an engine: the real vocabulary size."""

    eos_ids: frozenset[int] = frozenset({2})
    has_chat_template = False

    def __init__(self, vocab_size: int = VOCAB) -> None:
        self.vocab_size = vocab_size

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def render_chat(self, messages: object) -> list[int]:
        raise NotImplementedError

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode(errors="replace")

    def token(self, token_id: int) -> str:
        return chr(token_id)


@dataclass(frozen=True)
class Tiny:
    """A model folder or GGUF file, and the model's own forward in float32."""

    source: Path
    model: torch.nn.Module

    @property
    def backend(self) -> str:
        return "llamacpp" if self.source.suffix == ".gguf" else "transformers"

    def engine(self, **settings: object) -> TransformersEngine:
        defaults = {"dtype": "float32", "device": "cpu", "slots": 4, "max_context": 128, "backend": self.backend}
        config = ModelConfig(model=str(self.source), **{**defaults, **settings})  # type: ignore[arg-type]
        return load_engine(config, tokenizer=FixedVocabulary())

    def cache(self, engine: Engine, slot: int) -> list[Tensor]:
        """Keys and values of every layer, each with as many positions as the slot holds, in their order."""
        if self.backend == "llamacpp":
            from tests.unit.engine.llamacpp_cache import read

            return read(engine, slot)
        layers = engine._store.layers.values()
        return [kept[slot, :, : engine.length(slot)] for kv in layers for kept in (kv.keys, kv.values)]

    @torch.inference_mode()
    def plain(self, ids: Sequence[int]) -> Tensor:
        """Logits [len(ids), V] of a cold forward."""
        logits: Tensor = self.model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0, :, :VOCAB]
        return logits


def build(settings: dict[str, object], folder: Path) -> Path:
    """Saves a model with seeded random weights."""
    config: PreTrainedConfig = AutoConfig.for_model(**settings)  # type: ignore[arg-type]
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Tiny]:
    """The tiny model of a kind, made once."""
    made: dict[str, Tiny] = {}

    def make(kind: str) -> Tiny:
        if kind not in made:
            settings = KINDS[kind.removeprefix(LLAMACPP)]
            source = folder = build(settings, tmp_path_factory.mktemp(kind.replace(" ", "-")))
            if kind.startswith(LLAMACPP):
                source = write_gguf(folder, folder / "model.gguf")
            made[kind] = Tiny(source, AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval())
        return made[kind]

    return make


@pytest.fixture(scope="session", params=list(KINDS))
def each_kind(request: pytest.FixtureRequest, tiny: Callable[[str], Tiny]) -> Tiny:
    """Every kind of architecture in turn, by transformers."""
    return tiny(request.param)


@pytest.fixture(scope="session", params=[*KINDS, *LLAMACPP_KINDS])
def any_kind(request: pytest.FixtureRequest, tiny: Callable[[str], Tiny]) -> Tiny:
    """Every kind of architecture in turn, by either backend."""
    return tiny(request.param)


@pytest.fixture(scope="session")
def build_model() -> Callable[[dict[str, object], Path], Path]:
    """Makes a model of any settings."""
    return build
