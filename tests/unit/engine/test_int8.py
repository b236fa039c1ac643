"""Weights of 8 bits: the products are those of the integers, the engine's contract holds, and the name says it."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import silu

from draftproof.engine import config, int8
from draftproof.engine.config import ModelConfig
from draftproof.engine.interface import Row
from draftproof.engine.loading import load_engine
from draftproof.engine.selfcheck import distance
from draftproof.errors import ConfigError, ModelLoadError
from draftproof.serving import options
from draftproof.testing.tiny import make_tiny_model
from tests.unit.engine.conftest import FixedVocabulary
from tests.unit.engine.test_updating import IDS, Running

# Results are rounded to bfloat16, wide ones once before they are scaled and once after.
TOLERANCE = 2.0**-7
ROWS = [1, 2, 3, 5, 9, 15, 16, 40]


@pytest.fixture
def draw():
    generator = torch.Generator().manual_seed(7)
    return lambda *shape: torch.randn(*shape, generator=generator)


def close(got, expected, terms) -> bool:
    """Whether results agree with float64 ones: to TOLERANCE of their size, and 1e-5 of the sum's terms' sizes."""
    return bool(((got.double() - expected).abs() <= TOLERANCE * expected.abs() + 1e-5 * terms).all())


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("biased", [False, True])
def test_products_are_those_of_the_dequantised_weights(draw, rows, biased):
    x, weight = draw(rows, 576).bfloat16(), draw(200, 576) * draw(200, 1).exp()
    bias = draw(200).bfloat16() if biased else None
    projection = int8.Int8Projection(weight, bias)
    dequantised = projection.integers.double() * projection.scales.double()[:, None]
    product, terms = x.double() @ dequantised.T, x.double().abs() @ dequantised.abs().T
    if bias is not None:
        # added to a product that is rounded already
        terms = terms + product.abs() * TOLERANCE / 1e-5
        product = product + bias.double()
    assert close(projection(x), product, terms)
    other = draw(rows, 200).bfloat16()
    terms = terms + product.abs() * TOLERANCE / 1e-5
    assert close(projection.plus(x, other), product + other.double(), terms)
    assert close(projection.times(x, other), product * other.double(), terms * other.double().abs())
    assert close(projection.silu(x), silu(product), 2 * terms)
    projection.scales = projection.scales.roll(1)
    assert not close(projection(x), product, terms)


@pytest.mark.parametrize("rows", ROWS[1:6])
def test_few_rows_have_the_same_bits_whatever_rows_they_come_with(draw, rows):
    x, projection = draw(rows, 64).bfloat16(), int8.Int8Projection(draw(48, 64), None)
    together = projection(x)
    for row in range(rows):
        assert torch.equal(projection(x[row : row + 1])[0], together[row])


def test_each_weight_is_off_by_half_a_step_at_most(draw):
    weight = torch.cat([draw(60, 100) * draw(60, 1).exp(), torch.zeros(1, 100)]).bfloat16()
    integers, scales = int8.quantised(weight)
    steps = scales.double()[:, None]
    # the largest of a row may lie a little past the last integer, since the scale is rounded
    assert bool(((integers.double() * steps - weight.double()).abs() <= 0.5 * steps * (1 + 2**-7)).all())
    assert integers[:-1].abs().amax(-1).eq(127).all()
    again, same = int8.quantised(integers.float() * scales.float()[:, None])
    assert torch.equal(again[:-1], integers[:-1])
    assert torch.equal(same[:-1], scales[:-1])


@pytest.fixture(params=["llama", "qwen2", "qwen3", "mistral-window"])
def model(request, tiny):
    return tiny(request.param)


def dequantised(model, folder):
    """A folder with the weights that an int8 engine of the model computes with, in float32."""
    model.model.save_pretrained(folder)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name, tensor in tensors.items():
        if tensor.ndim == 2 and (model.model.config.tie_word_embeddings or "embed_tokens" not in name):
            integers, scales = int8.quantised(tensor)
            tensors[name] = integers.float() * scales.float()[:, None]
    save_file(tensors, path, metadata={"format": "pt"})
    return load_engine(
        ModelConfig(model=str(folder), dtype="float32", device="cpu", slots=4, packed=False),
        tokenizer=FixedVocabulary(),
    )


@pytest.mark.parametrize("width", [5, 40])
def test_the_engine_computes_the_model_of_the_dequantised_weights(model, tmp_path, width):
    ours, theirs, original = model.engine(dtype="int8"), dequantised(model, tmp_path), model.engine()
    assert ours.run.name == "packed"
    sixteen = model.engine(dtype="bfloat16")
    text = torch.randint(0, 89, (40,), generator=torch.Generator().manual_seed(1)).tolist()

    def logits(engine):
        return torch.cat([engine.forward([Row(1, at, text[at : at + width], width)]) for at in range(0, 40, width)])

    expected = logits(theirs)
    # as near as bfloat16 is to the model it was rounded from, and nearer than to the weights before they were
    assert distance(logits(ours), expected) < 2 * distance(logits(sixteen), logits(original))
    assert distance(logits(ours), expected) < distance(logits(ours), logits(original))


@pytest.mark.parametrize("accepted", range(5))
def test_the_cache_equals_a_cold_recompute_after_every_accept_length(model, accepted):
    """Bit by bit in batch-invariant mode and, in passes of few tokens, in the first layer; else as near as bfloat16."""
    text, wrong, after = [5, 6, 7, 8, 9, 10, 11], [21, 22, 23, 24], [31, 32]
    committed = [*text, *wrong[:accepted], *after]
    for exact in (True, False):
        engine = model.engine(dtype="int8", batch_invariant=exact)
        engine.forward([Row(0, 0, [1] * 5, 1), Row(2, 0, text, 0)])
        engine.forward([Row(2, len(text), wrong, len(wrong)), Row(0, 5, [3], 1)])
        engine.truncate(2, len(text) + accepted)
        engine.forward([Row(2, len(text) + accepted, after, 1)])
        cold = model.engine(dtype="int8", batch_invariant=exact)
        cold.forward([Row(1, 0, committed, 1)])
        assert engine.token_ids(2) == cold.token_ids(1) == tuple(committed)
        for index, (warm, expected) in enumerate(zip(model.cache(engine, 2), model.cache(cold, 1), strict=True)):
            if exact or index < 2:
                assert torch.equal(warm, expected)
            else:
                torch.testing.assert_close(warm, expected, atol=0.05, rtol=2**-5)
        stale = model.engine(dtype="int8", batch_invariant=exact)
        stale.forward([Row(1, 0, [*committed[:-2], 40, committed[-1]], 1)])
        differences = [(a - b).abs().max() for a, b in zip(model.cache(stale, 1), model.cache(cold, 1), strict=True)]
        assert max(differences) > 0.5


def test_name_and_hash_tell_quantised_weights_from_others(tmp_path):
    one, two = make_tiny_model(tmp_path / "one", seed=0), make_tiny_model(tmp_path / "two", seed=1)
    engines = {
        (folder.name, dtype): load_engine(ModelConfig(model=str(folder), dtype=dtype, slots=2, max_context=32))
        for folder in (one, two)
        for dtype in ("auto", "bfloat16", "float32", "int8")
    }
    assert engines["one", "int8"].name == "one (int8)"
    assert engines["one", "auto"].name == "one"
    quantised = [engines[name, "int8"].weights_sha256 for name in ("one", "two")]
    others = {engine.weights_sha256 for (_, dtype), engine in engines.items() if dtype != "int8"}
    assert len({*quantised, *others}) == 2 + len(others)
    again = load_engine(ModelConfig(model=str(one), dtype="int8", slots=2, max_context=32))
    assert again.weights_sha256 == quantised[0]


def test_new_weights_are_quantised_too(tmp_path):
    old, new = make_tiny_model(tmp_path / "old", seed=0), make_tiny_model(tmp_path / "new", seed=1)
    running, fresh = Running(old, dtype="int8"), Running(new, dtype="int8")
    update = running.load(new)
    update.install()
    assert running.engine.weights_sha256 == fresh.engine.weights_sha256
    assert torch.equal(running.logits(), fresh.engine.forward([Row(0, 0, IDS, len(IDS))]))


def test_a_head_that_is_the_embedding_is_kept_once(tiny):
    run = tiny("qwen2").engine(dtype="int8").run
    assert run.embeddings.dtype == torch.int8
    assert run.embeddings.data_ptr() == run.head.integers.data_ptr()
    assert tiny("llama").engine(dtype="int8").run.embeddings.is_floating_point()


def test_what_has_no_packed_forward_is_refused(tiny):
    with pytest.raises(ModelLoadError, match="int8 weights are for"):
        tiny("gpt2").engine(dtype="int8")
    with pytest.raises(ConfigError, match="packed"):
        ModelConfig(dtype="int8", packed=False)
    with pytest.raises(ConfigError, match="llamacpp"):
        ModelConfig(dtype="int8", backend="llamacpp")


def test_services_take_every_dtype_that_engines_know():
    assert set(get_args(options.DType)) == set(get_args(config.DType))
    assert set(get_args(options.Backend)) == set(get_args(config.Backend))
