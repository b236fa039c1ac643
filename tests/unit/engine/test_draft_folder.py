"""Distilled drafts on disk: what goes in comes out, and a draft of another base is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from draftproof.engine import draft_folder
from draftproof.engine.config import ModelConfig
from draftproof.engine.draft_folder import Draft
from draftproof.engine.interface import Row
from draftproof.engine.loading import load_engine, load_model, load_tokenizer
from draftproof.engine.student import cut
from draftproof.errors import ConfigError, ModelLoadError
from draftproof.testing.tiny import KINDS, Kind, load_plain, make_tiny_model

VOCAB = 64
KNOWN = torch.arange(3, 45, 2, dtype=torch.int32)
IDS = [5, 9, 31, 2]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("target"), vocab_size=VOCAB, layers=3)


def saved(target: Path, folder: Path, base: str | None, adapter: torch.Tensor | None = None) -> Draft:
    model = cut(load_plain(target), [2, 0])
    rows = model.get_output_embeddings().weight.detach()[KNOWN.long()]  # type: ignore[union-attr,index]
    draft = Draft(
        model=model,
        head_token_ids=KNOWN,
        head_adapter=adapter,
        head_weight=rows if adapter is None else None,
        base=base,
        embedding=draft_folder.base_embedding(str(target)),
    )
    draft_folder.save(folder, draft)
    return draft


@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_model_is_those_layers_of_the_target(kind: Kind, tmp_path: Path) -> None:
    whole = load_plain(make_tiny_model(tmp_path / "target", kind, VOCAB, layers=3))
    same = cut(whole, [0, 1, 2])
    ids = torch.tensor([IDS])
    assert torch.allclose(same(input_ids=ids).logits, whole(input_ids=ids).logits, atol=1e-5)
    part = cut(whole, [2, 0])
    assert part.config.get_text_config().num_hidden_layers == 2
    assert not torch.allclose(part(input_ids=ids).logits, whole(input_ids=ids).logits, atol=1e-2)


def test_a_layer_that_is_not_there_is_named(target: Path) -> None:
    with pytest.raises(ConfigError, match="layers"):
        cut(load_plain(target), [0, 3])


@pytest.mark.parametrize("shared", [True, False])
def test_a_folder_gives_back_the_model(target: Path, tmp_path: Path, shared: bool) -> None:
    draft = saved(target, tmp_path / "draft", str(target) if shared else None)
    loaded = draft_folder.load(tmp_path / "draft", str(target) if shared else None, torch.float32)
    ids = torch.tensor([IDS])
    with torch.no_grad():
        got, expected = loaded(input_ids=ids).logits[0], draft.model(input_ids=ids).logits[0]
    known = KNOWN.long()
    assert torch.isfinite(got).nonzero()[:, 1].tolist() == known.tolist() * len(IDS)
    # eight bits a weight, and matrices of a few rows
    assert float((got[:, known].softmax(-1) - expected[:, known].softmax(-1)).abs().sum(-1).max()) < 0.1
    assert ("embedding" in load_file(tmp_path / "draft" / draft_folder.WEIGHTS)) is not shared


def test_an_adapter_makes_the_head_out_of_the_embedding(tmp_path: Path) -> None:
    target = make_tiny_model(tmp_path / "target", "qwen3", VOCAB)
    embedding = draft_folder.base_embedding(str(target))
    adapter = torch.eye(embedding.shape[1]) + 0.1 * torch.randn(embedding.shape[1], embedding.shape[1])
    saved_to = tmp_path / "draft"
    model = cut(load_plain(target), [0])
    draft_folder.save(
        saved_to,
        Draft(
            model=model, head_token_ids=KNOWN, head_adapter=adapter, head_weight=None, base=None, embedding=embedding
        ),
    )
    loaded = draft_folder.load(saved_to, None, torch.float32)
    head = loaded.get_output_embeddings().weight  # type: ignore[union-attr]
    assert torch.allclose(head, embedding[KNOWN.long()] @ adapter.T, atol=0.02)  # type: ignore[arg-type]


def test_an_engine_serves_it_with_the_tokenizer_of_its_base(target: Path, tmp_path: Path) -> None:
    saved(target, tmp_path / "draft", str(target))
    config = ModelConfig(model=str(tmp_path / "draft"), slots=2)
    engine = load_engine(config)
    assert engine.vocab_size == VOCAB
    logits = engine.forward([Row(1, 0, IDS, 2)])
    assert torch.isfinite(logits).sum(-1).tolist() == [len(KNOWN)] * 2
    assert load_tokenizer(config).vocab_size == VOCAB


def test_it_is_loaded_for_inference(tmp_path: Path) -> None:
    """A target that was trained with dropout: the draft computes the same every time."""
    target = make_tiny_model(tmp_path / "target", vocab_size=VOCAB, layers=3)
    saved(target, tmp_path / "draft", str(target))
    path = tmp_path / "draft" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"attention_dropout": 0.5}))
    model = load_model(ModelConfig(model=str(tmp_path / "draft"), dtype="float32", max_context=16))
    assert not any(module.training for module in model.modules())
    assert not any(parameter.requires_grad for parameter in model.parameters())
    ids = torch.tensor([IDS])
    assert torch.equal(model(input_ids=ids).logits, model(input_ids=ids).logits)


def test_another_base_is_refused(target: Path, tmp_path: Path) -> None:
    saved(target, tmp_path / "draft", str(target))
    other = make_tiny_model(tmp_path / "other", vocab_size=VOCAB, seed=5)
    with pytest.raises(ModelLoadError, match="another"):
        draft_folder.load(tmp_path / "draft", str(other), None)


def test_an_unknown_format_is_refused(target: Path, tmp_path: Path) -> None:
    saved(target, tmp_path / "draft", str(target))
    path = tmp_path / "draft" / "config.json"
    config = json.loads(path.read_text())
    config["draftproof_draft"]["format"] = 2
    path.write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match="format 2"):
        load_engine(ModelConfig(model=str(tmp_path / "draft")))


def test_a_damaged_folder_is_refused(target: Path, tmp_path: Path) -> None:
    saved(target, tmp_path / "draft", str(target))
    path = tmp_path / "draft" / "config.json"
    config = json.loads(path.read_text())
    config["num_hidden_layers"] = 3
    path.write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match="damaged"):
        load_engine(ModelConfig(model=str(tmp_path / "draft")))


def test_the_embedding_alone_is_read_from_the_base(target: Path) -> None:
    plain = AutoModelForCausalLM.from_pretrained(target).get_input_embeddings().weight
    assert torch.equal(draft_folder.base_embedding(str(target)), plain)


def test_the_packed_forward_knows_the_same_tokens(target: Path, tmp_path: Path) -> None:
    saved(target, tmp_path / "draft", str(target))
    got, expected = (
        load_engine(ModelConfig(model=str(tmp_path / "draft"), dtype="float32", slots=1, max_context=16, packed=packed))
        for packed in (True, False)
    )
    assert (got.run.name, expected.run.name) == ("packed", "transformers")
    rows = [Row(0, 0, IDS, len(IDS))]
    mine, theirs = got.forward(rows), expected.forward(rows)
    assert torch.isfinite(mine).nonzero()[:, 1].tolist() == KNOWN.tolist() * len(IDS)
    assert torch.allclose(mine, theirs, atol=1e-4)
