"""A GGUF file is a model like any other."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from draftproof.engine.config import ModelConfig
from draftproof.engine.interface import Row
from draftproof.engine.loading import load_engine, load_tokenizer

LAYERS, HIDDEN, HEADS, KV_HEADS, MIDDLE = 2, 32, 4, 2, 64


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A Llama with a byte-level vocabulary, weights in float32 and in 8-bit blocks."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(MIDDLE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_rope_freq_base(10000.0)
    tokens = ["<unk>", "<eos>", *(chr(code) for code in range(33, 127)), *(chr(code) for code in range(161, 255)), "ab"]
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([2, 3] + [1] * (len(tokens) - 2))
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(1)
    writer.add_bos_token_id(1)
    random = np.random.default_rng(0)

    def tensor(name: str, *shape: int, quantised: bool = False) -> None:
        data = random.normal(0, 0.2, shape).astype(np.float32)
        if quantised:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(data, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, data)

    tensor("token_embd.weight", len(tokens), HIDDEN)
    tensor("output.weight", len(tokens), HIDDEN, quantised=True)
    tensor("output_norm.weight", HIDDEN)
    for layer in range(LAYERS):
        head = HIDDEN // HEADS
        tensor(f"blk.{layer}.attn_norm.weight", HIDDEN)
        tensor(f"blk.{layer}.ffn_norm.weight", HIDDEN)
        tensor(f"blk.{layer}.attn_q.weight", HIDDEN, HIDDEN, quantised=True)
        tensor(f"blk.{layer}.attn_k.weight", KV_HEADS * head, HIDDEN, quantised=True)
        tensor(f"blk.{layer}.attn_v.weight", KV_HEADS * head, HIDDEN, quantised=True)
        tensor(f"blk.{layer}.attn_output.weight", HIDDEN, HIDDEN, quantised=True)
        tensor(f"blk.{layer}.ffn_gate.weight", MIDDLE, HIDDEN, quantised=True)
        tensor(f"blk.{layer}.ffn_up.weight", MIDDLE, HIDDEN, quantised=True)
        tensor(f"blk.{layer}.ffn_down.weight", HIDDEN, MIDDLE, quantised=True)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_gguf_file_loads_and_runs(path):
    config = ModelConfig(model=str(path), dtype="float32", device="cpu", slots=2)
    tokenizer = load_tokenizer(config)
    assert tokenizer.token(1) == "<eos>"
    assert 1 in tokenizer.eos_ids
    engine = load_engine(config, tokenizer=tokenizer)
    assert engine.name == "tiny"
    assert engine.max_context == 128
    logits = engine.forward([Row(0, 0, [5, 6, 7], 3), Row(1, 0, [5, 6], 1)])
    assert torch.isfinite(logits).all()
    torch.testing.assert_close(logits[3], logits[1], atol=1e-4, rtol=0)
