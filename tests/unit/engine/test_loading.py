"""Every way to name a model, and one clear line for every way to get it wrong."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
import torch
from transformers import AutoConfig

from draftproof.engine.config import ModelConfig
from draftproof.engine.interface import Row
from draftproof.engine.loading import find, load_engine, load_tokenizer
from draftproof.engine.projections import compute_dtype
from draftproof.errors import ConfigError, ModelLoadError


class Vocabulary:
    vocab_size = 89


def load(folder, **settings):
    config = ModelConfig(model=str(folder), device="cpu", slots=2, **{"dtype": "float32", **settings})
    return load_engine(config, tokenizer=Vocabulary())


SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


@pytest.mark.parametrize("device_map", ["auto", "cpu"])
def test_device_map(tiny, device_map):
    engine = tiny("llama").engine(device_map=device_map)
    expected = tiny("llama").plain([1, 2, 3])
    torch.testing.assert_close(engine.forward([Row(0, 0, [1, 2, 3], 3)]), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits(each_kind, dtype):
    engine = each_kind.engine(dtype=dtype, packed=False)
    logits = engine.forward([Row(0, 0, [1, 2, 3], 3)])
    assert logits.dtype == getattr(torch, dtype)
    assert engine.kv_bytes == each_kind.engine().kv_bytes // 2


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits_packed(tiny, dtype):
    """Without arithmetic of 16 bits the weights keep them, while logits, keys and values have 32."""
    engine = tiny("llama").engine(dtype=dtype)
    computed = compute_dtype(getattr(torch, dtype))
    assert engine.forward([Row(0, 0, [1, 2, 3], 3)]).dtype == computed
    assert engine.kv_bytes == tiny("llama").engine().kv_bytes * computed.itemsize // 4


def test_weights_tell_models_and_dtypes_apart(tiny, build_model, tmp_path):
    first = tiny("llama").engine()
    assert len(first.weights_sha256) == 32
    assert tiny("llama").engine(max_context=16).weights_sha256 == first.weights_sha256
    assert tiny("llama").engine(dtype="bfloat16").weights_sha256 != first.weights_sha256
    assert tiny("qwen3").engine().weights_sha256 != first.weights_sha256


def test_context_defaults_to_the_model_s_own_limit(tiny):
    assert tiny("llama").engine(max_context=None).max_context == 256
    with pytest.raises(ModelLoadError, match="takes at most 256 tokens; set max_context to 256"):
        tiny("llama").engine(max_context=257)


def test_context_ends_where_rotary_frequencies_would_change(build_model, tmp_path):
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
    settings = {**SMALL, "model_type": "llama", "max_position_embeddings": 256, "rope_parameters": rope}
    assert load(build_model(settings, tmp_path)).max_context == 64


def test_missing_folder(tmp_path):
    with pytest.raises(ModelLoadError, match=r"no folder .*nowhere; give an existing folder"):
        load(tmp_path / "nowhere")


def test_missing_gguf(tmp_path):
    with pytest.raises(ModelLoadError, match=r"no file .*model\.gguf"):
        load(tmp_path / "model.gguf")


def test_folder_without_config(tmp_path):
    with pytest.raises(ModelLoadError, match=r"holds no config\.json"):
        load(tmp_path)


def test_folder_without_weights(tiny, tmp_path):
    shutil.copy(tiny("llama").source / "config.json", tmp_path)
    with pytest.raises(ModelLoadError, match=r"model\.safetensors"):
        load(tmp_path)


def test_folder_without_tokenizer(tiny):
    with pytest.raises(ModelLoadError, match="can't be loaded"):
        load_tokenizer(ModelConfig(model=str(tiny("llama").source)))


def test_hub_out_of_reach(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelLoadError, match="hub has no such model or can't be reached") as error:
        load("nobody/no-such-model")
    assert "\n" not in error.value.message


def test_hub_id_and_revision_pass_through():
    source = find(ModelConfig(model="org/name", revision="abc"))
    assert (source.location, source.keywords) == ("org/name", {"revision": "abc"})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_missing_cuda(tiny):
    with pytest.raises(ModelLoadError, match="no CUDA device"):
        tiny("llama").engine(device="cuda")


GEMMA2 = {**SMALL, "model_type": "gemma2", "attn_logit_softcapping": 50.0, "query_pre_attn_scalar": 8}
GPT_OSS = {**SMALL, "model_type": "gpt_oss", "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 8}
QWEN3_NEXT = {**SMALL, "model_type": "qwen3_next", "num_experts": 2, "num_experts_per_tok": 1}
MAMBA = {"model_type": "mamba", "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}
BLOOM = {"model_type": "bloom", "vocab_size": 96, "hidden_size": 32, "n_layer": 2, "n_head": 4}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (GEMMA2, "softcap"),
        (GPT_OSS, "s_aux"),
        (QWEN3_NEXT, "linear_attention layers"),
        (MAMBA, "linear_attention layers"),
        (BLOOM, "can't be served"),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_architectures_it_cannot_serve_say_so_in_one_line(build_model, tmp_path, settings, message):
    with pytest.raises(ModelLoadError, match=message) as error:
        load(build_model(settings, tmp_path))
    assert "\n" not in error.value.message


def test_encoder_decoder_is_refused(tmp_path):
    AutoConfig.for_model("t5", vocab_size=96, d_model=32).save_pretrained(tmp_path)
    with pytest.raises(ModelLoadError, match="encoder-decoder"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", ""),
        ("dtype", "int4"),
        ("device", "tpu"),
        ("device", "cpu:1"),
        ("device", "cuda:x"),
        ("slots", 0),
        ("max_context", 0),
        ("threads", 0),
    ],
)
def test_settings_out_of_range(field, value):
    with pytest.raises(ConfigError, match=field):
        ModelConfig(**{field: value})


def test_config_needs_neither_torch_nor_transformers():
    code = "import sys, draftproof.engine.config; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
