"""Tiny models as GGUF files, as llama.cpp's own converter would write them."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from numpy.typing import NDArray
from transformers import AutoTokenizer

from draftproof.testing.tiny import load_plain

needs_llamacpp = pytest.mark.skipif(
    importlib.util.find_spec("llama_cpp") is None, reason="the extra llamacpp isn't installed"
)
NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "embed_tokens": "token_embd",
    "lm_head": "output",
    "norm": "output_norm",
}


def write_gguf(folder: Path, path: Path, kind: Kind = Kind.F32) -> Path:
    """Writes a model of llama, qwen2 or qwen3 kind with its tokenizer, if it has one with merges.

    Without, the file goes into the model's own folder, where the tokenizer is found.

    Args:
        folder: the model, as save_pretrained saves it.
        path: the file.
        kind: how matrices are stored; what has one dimension is float32.
    """
    model = load_plain(folder)
    config = model.config
    writer = gguf.GGUFWriter(path, config.model_type)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(_head_dim(config))
    writer.add_value_length(_head_dim(config))
    writer.add_rope_dimension_count(_head_dim(config))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_file_type({Kind.F32: 0, Kind.F16: 1, Kind.Q8_0: 7}[kind])
    if not _add_tokenizer(writer, folder, config.vocab_size):
        writer.add_tokenizer_model("none")
        writer.add_vocab_size(config.vocab_size)
    for name, parameter in model.named_parameters():
        values = parameter.detach().numpy()
        if config.model_type == "llama" and ("q_proj" in name or "k_proj" in name):
            values = _rotary_order(values, _head_dim(config))
        stored = kind if values.ndim > 1 else Kind.F32
        writer.add_tensor(_name(name), gguf.quants.quantize(values, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _head_dim(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _add_tokenizer(writer: gguf.GGUFWriter, folder: Path, width: int) -> bool:
    """Whether there is one that the format can hold."""
    if not (folder / "tokenizer.json").exists():
        return False
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    if not model["merges"]:
        return False
    tokens = [tokenizer.convert_ids_to_tokens(i) for i in range(len(tokenizer))]
    padding = [f"[PAD{i}]" for i in range(len(tokens), width)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens + padding)
    control, normal, unused = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL, gguf.TokenType.UNUSED
    kinds = [control if token == tokenizer.eos_token else normal for token in tokens]
    writer.add_token_types(kinds + [unused] * len(padding))
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_bos_token_id(tokenizer.eos_token_id)
    writer.add_add_bos_token(False)
    if tokenizer.chat_template:
        writer.add_chat_template(tokenizer.chat_template)
    return True


def _rotary_order(weights: NDArray[np.float32], head_dim: int) -> NDArray[np.float32]:
    """From halves to pairs, the order in which llama.cpp rotates a Llama's heads."""
    heads = weights.shape[0] // head_dim
    paired = weights.reshape(heads, 2, head_dim // 2, *weights.shape[1:]).swapaxes(1, 2)
    return np.ascontiguousarray(paired.reshape(weights.shape))


def _name(name: str) -> str:
    """GGUF's name of a transformers parameter."""
    parts, kind = name.removeprefix("model.").rsplit(".", 1)
    block = ""
    if parts.startswith("layers."):
        _, layer, parts = parts.split(".", 2)
        block = f"blk.{layer}."
    return f"{block}{NAMES[parts]}.{kind}"
