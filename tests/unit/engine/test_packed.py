"""The packed forward against transformers' own code, over the same slots and rows."""

from __future__ import annotations

import random

import pytest
import torch
from safetensors.torch import load_file, save_file
from structlog.testing import capture_logs

from draftproof.engine import packed, projections
from draftproof.engine.config import ModelConfig
from draftproof.engine.interface import Row
from draftproof.engine.loading import load_engine

V = 89
SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
}


def rope(kind: str, **settings: float) -> dict[str, object]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, **settings}}


LLAMA3 = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
SUPPORTED: dict[str, dict[str, object]] = {
    "llama": {"model_type": "llama"},
    "one key head": {"model_type": "llama", "num_key_value_heads": 1},
    "as many key heads": {"model_type": "llama", "num_key_value_heads": 4},
    "tied": {"model_type": "llama", "tie_word_embeddings": True},
    "biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "wide heads": {"model_type": "llama", "head_dim": 12},
    "llama3 rope": {"model_type": "llama", **rope("llama3", **LLAMA3)},
    "yarn": {"model_type": "llama", **rope("yarn", factor=4.0, original_max_position_embeddings=32)},
    "linear rope": {"model_type": "llama", **rope("linear", factor=2.0)},
    "qwen2": {"model_type": "qwen2"},
    "qwen2, mixed windows": {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 5,
        "max_window_layers": 1,
    },
    "qwen3": {"model_type": "qwen3"},
    "mistral": {"model_type": "mistral", "sliding_window": 7},
}
OTHERS: dict[str, dict[str, object]] = {
    "another activation": {"model_type": "llama", "hidden_act": "gelu"},
    "changing rope": {"model_type": "llama", **rope("dynamic", factor=4.0)},
    "experts": {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "another family": {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4},
}


class Vocabulary:
    vocab_size = V


def load(folder, **settings):
    config = ModelConfig(
        model=str(folder), device="cpu", **{"dtype": "float32", "slots": 4, "max_context": 128, **settings}
    )
    return load_engine(config, tokenizer=Vocabulary())


@pytest.fixture(params=list(SUPPORTED))
def folder(request, build_model, tmp_path):
    return build_model(randomised({**SMALL, **SUPPORTED[request.param]}), tmp_path)


def randomised(settings):
    return {**settings, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def schedule(seed: int) -> list[list[Row]]:
    """Passes with long and short rows, rollbacks, gaps between slots, and rows without logits."""
    choose = random.Random(seed)
    lengths = [0] * 4
    passes = []
    for _ in range(10):
        rows = []
        for slot in choose.sample(range(4), choose.randint(1, 4)):
            start = choose.choice([lengths[slot], choose.randint(0, lengths[slot])])
            count = choose.choice([1, 1, 2, 5, 5, 17, 70])
            if start + count > 128:
                start = 0
            lengths[slot] = start + count
            rows.append(Row(slot, start, choose.choices(range(V), k=count), choose.choice([0, 1, count])))
        passes.append(rows)
    return passes


def spoil_norms(engine_folder):
    """Gives norms and biases other values than the ones and zeros that they begin with."""
    path = engine_folder / "model.safetensors"
    tensors = load_file(path)
    generator = torch.Generator().manual_seed(3)
    for name, tensor in tensors.items():
        if tensor.ndim == 1:
            tensors[name] = tensor + 0.3 * torch.randn(tensor.shape, generator=generator)
    save_file(tensors, path, metadata={"format": "pt"})


@pytest.mark.parametrize("blocked", [True, False], ids=["blocked", "plain"])
def test_equals_transformers_pass_by_pass(folder, monkeypatch, blocked):
    spoil_norms(folder)
    if not blocked:
        monkeypatch.setattr("draftproof.engine.projections._blocked", lambda dtype: False)
    ours, theirs = load(folder), load(folder, packed=False)
    assert (ours.run.name, theirs.run.name) == ("packed", "transformers")
    assert ours.weights_sha256 == theirs.weights_sha256
    for rows in schedule(1):
        torch.testing.assert_close(ours.forward(rows), theirs.forward(rows), atol=1e-4, rtol=0)
    for layer, kv in ours._store.layers.items():
        torch.testing.assert_close(kv.keys, theirs._store.layers[layer].keys, atol=1e-4, rtol=0)
        torch.testing.assert_close(kv.values, theirs._store.layers[layer].values, atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", ["llama", "biases", "qwen3"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits_are_as_close_to_float32_as_transformers_own(build_model, tmp_path, kind, dtype):
    folder = build_model(randomised({**SMALL, **SUPPORTED[kind]}), tmp_path)
    spoil_norms(folder)
    exact, ours, theirs = load(folder), load(folder, dtype=dtype), load(folder, dtype=dtype, packed=False)
    assert ours.run.name == "packed"
    off = {"ours": 0.0, "theirs": 0.0}
    for rows in schedule(2):
        expected = exact.forward(rows)
        off["ours"] += float((ours.forward(rows).float() - expected).square().sum())
        off["theirs"] += float((theirs.forward(rows).float() - expected).square().sum())
    assert off["ours"] < 2 * off["theirs"]


@pytest.mark.parametrize("kind", ["llama", "biases", "qwen3"])
@pytest.mark.parametrize("way", ["a cpu without 16-bit arithmetic", "float32", "a draft"])
def test_weights_of_16_bits_run_in_float32_as_they_are(build_model, tmp_path, monkeypatch, kind, way):
    """bfloat16 weights, some of them tiny, give what transformers gives for exactly these weights in float32."""
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        pytest.skip("this PyTorch has no FBGEMM")
    if way == "a cpu without 16-bit arithmetic":
        monkeypatch.setattr("draftproof.engine.projections._blocked", lambda dtype: dtype == torch.float32)
    if way == "a draft":
        monkeypatch.setattr("draftproof.engine.draft_folder.describes", lambda settings: True)
    folder = build_model(randomised({**SMALL, **SUPPORTED[kind]}), tmp_path)
    spoil_norms(folder)
    path = folder / "model.safetensors"
    tensors = {name: tensor.bfloat16() for name, tensor in load_file(path).items()}
    for tensor in tensors.values():
        tensor.view(-1)[::7] *= 1e-5
    save_file(tensors, path, metadata={"format": "pt"})
    ours = load(folder, dtype="float32" if way == "float32" else "bfloat16")
    theirs = load(folder, packed=False)
    layer = ours.run.layers[0]
    for projection in (layer.qkv, layer.out, layer.gate, layer.up, layer.down, ours.run.head):
        assert isinstance(projection, projections.HalfProjection)
    for rows in schedule(4):
        torch.testing.assert_close(ours.forward(rows), theirs.forward(rows), atol=1e-4, rtol=0)
    for layer, kv in ours._store.layers.items():
        torch.testing.assert_close(kv.keys, theirs._store.layers[layer].keys, atol=1e-4, rtol=0)
        torch.testing.assert_close(kv.values, theirs._store.layers[layer].values, atol=1e-4, rtol=0)


def test_halves_keep_every_bit_or_say_so():
    weight = torch.randn(64, 64, generator=torch.Generator().manual_seed(5)).bfloat16()
    weight[0, :3] = torch.tensor([3e4, 3e-5, 0.0])
    half, scale = projections.halves(weight)
    assert torch.equal(half.float() * scale, weight.float())
    weight[0, 3] = 1e-9
    assert projections.halves(weight) is None
    assert isinstance(projections.project(weight), projections.PlainProjection | projections.OneDnnProjection)
    assert projections.halves(torch.zeros(2, 2).bfloat16())[1] == 1.0


@pytest.mark.parametrize("row", [0, 63])
def test_float32_weights_with_more_bits_stay_float32(row):
    weight = torch.randn(64, 64, generator=torch.Generator().manual_seed(5)).bfloat16().float()
    assert projections.halves(weight) is not None
    weight[row, 5] = 1 + 2**-11
    assert projections.halves(weight) is None
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(6))
    torch.testing.assert_close(projections.project(weight)(x), x @ weight.T, atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", list(OTHERS))
def test_everything_else_runs_transformers_code(build_model, tmp_path, kind):
    folder = build_model(randomised({**SMALL, **OTHERS[kind]}), tmp_path)
    assert load(folder).run.name == "transformers"


def test_a_packed_forward_that_computes_something_else_is_not_used(build_model, tmp_path, monkeypatch):
    folder = build_model(randomised({**SMALL, "model_type": "llama"}), tmp_path)
    expected = load(folder, packed=False).forward([Row(0, 0, [3, 4, 5], 3)])
    monkeypatch.setattr(packed, "rotated", lambda x, cos, sin: x * cos)
    with capture_logs() as logs:
        engine = load(folder)
    assert engine.run.name == "transformers"
    assert "standard deviations" in logs[0]["reason"]
    torch.testing.assert_close(engine.forward([Row(0, 0, [3, 4, 5], 3)]), expected, atol=1e-5, rtol=0)
