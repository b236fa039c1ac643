"""What the llama.cpp engine has of its own; that it keeps the engines' contract is in `test_forward`."""

from __future__ import annotations

import random
import sys

import pytest
import torch
from gguf import GGMLQuantizationType as Kind

import draftproof.engine
from draftproof.engine.config import ModelConfig
from draftproof.engine.interface import Row
from draftproof.engine.loading import load_engine, load_tokenizer
from draftproof.engine.selfcheck import distance
from draftproof.errors import ConfigError, ModelLoadError
from draftproof.testing.tiny import load_plain, make_tiny_model
from tests.tiny_gguf import needs_llamacpp, write_gguf

V = 320


def ids(count, seed=0):
    return random.Random(seed).choices(range(V), k=count)


def load(path, **settings):
    defaults = {"backend": "llamacpp", "threads": 1, "dtype": "float32", "slots": 4, "max_context": 600}
    return load_engine(ModelConfig(model=str(path), **{**defaults, **settings}))


def assert_close(got, expected, atol=1e-4):
    torch.testing.assert_close(got, expected, atol=atol, rtol=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("tiny"), vocab_size=V, padding=8, max_context=1024)


@pytest.fixture(scope="module")
def path(folder, tmp_path_factory):
    return write_gguf(folder, tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="module")
def plain(folder):
    model = load_plain(folder)

    @torch.inference_mode()
    def forward(text):
        return model(torch.tensor([text])).logits[0, :, :V]

    return forward


@needs_llamacpp
def test_a_pass_longer_than_a_batch_of_llamacpp(path, plain):
    engine = load(path)
    texts = [ids(500, 1), ids(30, 2), ids(300, 3)]
    logits = engine.forward([Row(slot, 0, text, 25) for slot, text in enumerate(texts)])
    for slot, text in enumerate(texts):
        assert_close(logits[slot * 25 : (slot + 1) * 25], plain(text)[-25:])
        assert engine.token_ids(slot) == tuple(text)


@needs_llamacpp
def test_batch_mates_change_little(path):
    alone = load(path)
    text = ids(40)
    expected = alone.forward([Row(0, 0, text, 5)])
    mixed = load(path)
    mixed.forward([Row(1, 0, ids(90, 1), 0), Row(2, 0, text[:-5], 0), Row(3, 0, ids(20, 2), 0)])
    mixed.truncate(1, 30)
    got = mixed.forward([Row(3, 20, ids(7, 3), 7), Row(2, 35, text[-5:], 5), Row(1, 30, ids(1, 4), 1)])[7:12]
    assert_close(got, expected, 1e-5)


@needs_llamacpp
@pytest.mark.parametrize(("kind", "dtype"), [(Kind.Q8_0, "float32"), (Kind.F16, "float16"), (Kind.F32, "bfloat16")])
def test_rounded_weights_and_caches(folder, tmp_path, kind, dtype):
    """Near the dequantised model, not equal: llama.cpp rounds activations, too. Rollbacks change hardly anything."""
    path = write_gguf(folder, tmp_path / "tiny.gguf", kind)
    engine = load(path, dtype=dtype)
    text = ids(60)
    expected = engine.forward([Row(1, 0, text, 60)])
    dequantised = load(path, backend="transformers").forward([Row(1, 0, text, 60)])
    assert 1e-5 < distance(expected, dequantised) < 0.1
    engine.forward([Row(1, 30, ids(9, 1), 0)])
    got = [engine.forward([Row(1, at, text[at : at + 5], 5), Row(0, 0, ids(8), 1)])[:5] for at in range(30, 60, 5)]
    assert_close(torch.cat(got), expected[30:], 0.02)


@needs_llamacpp
def test_nan_of_one_request_does_not_reach_the_next_owner_or_the_others(path, plain):
    from tests.unit.engine.llamacpp_cache import poison

    engine = load(path)
    texts = [ids(60, 1), ids(50, 2)]
    engine.forward([Row(slot, 0, text, 0) for slot, text in enumerate(texts)])
    poison(engine, 0)
    assert engine.forward([Row(0, 60, [1], 1)]).isnan().all()
    engine.truncate(0, 0)
    short = ids(90, 3)
    logits = engine.forward([Row(2, 0, short, 1), Row(1, 50, [3], 1)])
    assert_close(logits[:1], plain(short)[-1:])
    assert_close(logits[1:], plain([*texts[1], 3])[-1:])


@needs_llamacpp
def test_failed_pass_leaves_slots_rolled_back_to_their_start(path, plain, monkeypatch):
    engine = load(path)
    engine.forward([Row(0, 0, ids(10), 0)])
    decode, calls = type(engine._native).decode, []

    def second_fails(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise RuntimeError("out of memory")
        return decode(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(type(engine._native), "decode", second_fails)
        with pytest.raises(RuntimeError, match="out of memory"):
            engine.forward([Row(0, 8, ids(300, 1), 1), Row(1, 0, ids(300, 2), 1)])
    assert engine.token_ids(0) == tuple(ids(10)[:8])
    assert engine.length(1) == 0
    text = [*ids(10)[:8], 4]
    logits = engine.forward([Row(1, 0, ids(5), 1), Row(0, 8, [4], 1)])
    assert_close(logits, torch.cat([plain(ids(5))[-1:], plain(text)[-1:]]))


@needs_llamacpp
def test_padding_is_no_vocabulary(path, folder):
    assert load(path).vocab_size == V
    ours, theirs = (load_tokenizer(ModelConfig(model=str(source))) for source in (path, folder))
    assert [ours.token(i) for i in range(ours.vocab_size)] == [theirs.token(i) for i in range(theirs.vocab_size)]
    assert ours.eos_ids == theirs.eos_ids


@needs_llamacpp
def test_weights_tell_quantisations_apart(folder, path, tmp_path):
    first, other = load(path), load(write_gguf(folder, tmp_path / "tiny.gguf", Kind.Q8_0))
    assert len(first.weights_sha256) == 32
    assert load(path, slots=1).weights_sha256 == first.weights_sha256
    assert other.weights_sha256 != first.weights_sha256
    assert first.weights_sha256 != load(path, backend="transformers").weights_sha256
    assert (first.name, other.name) == ("tiny (F32)", "tiny (Q8_0)")


@needs_llamacpp
def test_kv_budget_and_context(path):
    layers, kv_heads, head_dim = 2, 2, 8
    assert load(path, slots=3, max_context=64).kv_bytes == 3 * 64 * layers * 2 * kv_heads * head_dim * 4
    assert (
        load(path, slots=3, max_context=64, dtype="float16").kv_bytes == 3 * 64 * layers * 2 * kv_heads * head_dim * 2
    )
    assert load(path, max_context=None).max_context == 1024
    with pytest.raises(ModelLoadError, match="takes at most 1024 tokens"):
        load(path, max_context=1025)


@needs_llamacpp
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("nowhere.gguf", None, r"no file .*nowhere\.gguf"),
        ("broken.gguf", b"GGUF" + bytes(100), r"llama\.cpp can't load broken\.gguf: \S"),
        ("folder", None, "reads .gguf files, not .*folder; .*--backend transformers"),
    ],
)
def test_files_it_cannot_read_say_so_in_one_line(tmp_path, path, name, content, message):
    if content:
        (tmp_path / name).write_bytes(content)
    tokenizer = load_tokenizer(ModelConfig(model=str(path)))
    config = ModelConfig(model=str(tmp_path / name), backend="llamacpp", slots=1, max_context=16)
    with pytest.raises(ModelLoadError, match=message) as error:
        load_engine(config, tokenizer=tokenizer)
    assert "\n" not in error.value.message


@needs_llamacpp
def test_more_slots_than_llamacpp_has(path):
    with pytest.raises(ModelLoadError, match="at most 256 slots"):
        load(path, slots=257, max_context=8)


@needs_llamacpp
@pytest.mark.parametrize("threads", [None, 3])
def test_threads_are_those_of_the_process(path, threads):
    import llama_cpp

    before = torch.get_num_threads()
    try:
        context = load(path, threads=threads)._native._pointer
        expected = threads or before
        assert (llama_cpp.llama_n_threads(context), llama_cpp.llama_n_threads_batch(context)) == (expected, expected)
    finally:
        torch.set_num_threads(before)


@needs_llamacpp
def test_missing_gpu(path):
    import llama_cpp

    if llama_cpp.llama_supports_gpu_offload():
        pytest.skip("this llama.cpp has a GPU")
    with pytest.raises(ModelLoadError, match="CMAKE_ARGS"):
        load(path, device="cuda")


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"backend": "vllm"}, "backend"),
        ({"backend": "llamacpp", "batch_invariant": True}, "batch_invariant"),
        ({"backend": "llamacpp", "device_map": "auto"}, "device_map"),
        ({"backend": "llamacpp", "revision": "main"}, "revision"),
    ],
)
def test_settings_it_does_not_have(settings, field):
    with pytest.raises(ConfigError, match=field):
        ModelConfig(**settings)


def test_without_the_extra_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    for module in ("llamacpp", "llamacpp_native"):
        monkeypatch.delitem(sys.modules, f"draftproof.engine.{module}", raising=False)
        monkeypatch.delattr(draftproof.engine, module, raising=False)
    config = ModelConfig(model=str(tmp_path / "any.gguf"), backend="llamacpp")
    with pytest.raises(ModelLoadError, match=r"pip install 'draftproof\[llamacpp\]'"):
        load_engine(config)
