"""The tokenizer seam over real folders."""

from __future__ import annotations

import json

import pytest

from draftproof.engine.config import ModelConfig
from draftproof.engine.loading import load_engine, load_tokenizer
from draftproof.errors import InvalidArgumentError, UnsupportedError
from draftproof.testing.tiny import make_tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("model"), vocab_size=320, padding=12)


def load(folder):
    return load_tokenizer(ModelConfig(model=str(folder)))


def test_vocabulary_is_the_tokenizer_s_not_the_padded_one(folder):
    tokenizer = load(folder)
    assert tokenizer.vocab_size == 320
    assert load_engine(ModelConfig(model=str(folder), dtype="float32", device="cpu")).vocab_size == 320


def test_round_trip(folder):
    tokenizer = load(folder)
    assert tokenizer.decode(tokenizer.encode("Hé 日本 🙂")) == "Hé 日本 🙂"


def test_tokens_have_names_and_strangers_none(folder):
    tokenizer = load(folder)
    assert all(tokenizer.token(token_id) for token_id in range(320))
    assert tokenizer.token(320) == tokenizer.token(-1) == ""


def test_chat_ends_with_the_generation_prompt(folder):
    tokenizer = load(folder)
    assert tokenizer.has_chat_template
    ids = tokenizer.render_chat([{"role": "user", "content": "hi"}])
    assert tokenizer.decode(ids) == "<user>hi\n<assistant>"


def test_no_chat_template(tmp_path):
    tokenizer = load(make_tiny_model(tmp_path, vocab_size=320, chat_template=False))
    assert not tokenizer.has_chat_template
    with pytest.raises(UnsupportedError, match="no chat template"):
        tokenizer.render_chat([{"role": "user", "content": "hi"}])


def test_messages_the_template_refuses(tmp_path):
    make_tiny_model(tmp_path, vocab_size=320)
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(InvalidArgumentError, match="roles must alternate"):
        load(tmp_path).render_chat([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
@pytest.mark.parametrize(("stated", "expected"), [(7, {7, 319}), ([7, 9], {7, 9, 319}), ([7, 5000], {7, 319})])
def test_end_of_sequence_ids(tmp_path, file, stated, expected):
    make_tiny_model(tmp_path, vocab_size=320)
    (tmp_path / "generation_config.json").unlink(missing_ok=True)
    path = tmp_path / file
    settings = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**settings, "eos_token_id": stated}))
    assert load(tmp_path).eos_ids == expected


def test_generation_config_goes_before_config(tmp_path):
    make_tiny_model(tmp_path, vocab_size=320)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 7}))
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**settings, "eos_token_id": 11}))
    assert load(tmp_path).eos_ids == {7, 319}
