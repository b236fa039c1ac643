"""Other weights for a running engine: taken over whole, or refused by name with nothing disturbed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftproof.engine import draft_folder
from draftproof.engine.config import ModelConfig
from draftproof.engine.engine import TransformersEngine
from draftproof.engine.interface import Row
from draftproof.engine.loading import load_engine, load_tokenizer
from draftproof.engine.student import cut
from draftproof.engine.updating import WeightsLoader
from draftproof.errors import FingerprintMismatchError, InvalidArgumentError, OverloadedError
from draftproof.testing.tiny import load_plain, make_tiny_model

IDS = [1, 2, 3, 4, 5]


class Running:
    """An engine that runs, and the loader of other weights for it."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        config = ModelConfig(model=str(folder), slots=3, max_context=64, **settings)
        tokenizer = load_tokenizer(config)
        self.engine: TransformersEngine = load_engine(config, tokenizer=tokenizer)
        self.load = WeightsLoader(self.engine, tokenizer, config)

    def logits(self) -> torch.Tensor:
        return self.engine.forward([Row(0, 0, IDS, len(IDS))])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("weights")
    return make_tiny_model(root / "old", seed=0), make_tiny_model(root / "new", seed=1)


@pytest.fixture
def running(folders: tuple[Path, Path]) -> Running:
    return Running(folders[0])


@pytest.fixture
def broken(folders: tuple[Path, Path], tmp_path: Path) -> Callable[..., Path]:
    """Makes a copy of the new weights with one tensor changed."""

    def make(change: Callable[[dict[str, torch.Tensor]], None]) -> Path:
        tensors = load_file(folders[1] / "model.safetensors")
        change(tensors)
        file = tmp_path / "changed.safetensors"
        save_file(tensors, file)
        return file

    return make


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("whole_folder", [True, False])
def test_new_weights_are_those_of_a_fresh_start(folders: tuple[Path, Path], packed: bool, whole_folder: bool) -> None:
    running, fresh = Running(folders[0], packed=packed), Running(folders[1], packed=packed)
    before = running.logits()
    update = running.load(folders[1] if whole_folder else folders[1] / "model.safetensors")
    assert torch.equal(running.logits(), before), "loading alone changes nothing"
    update.install()
    assert running.engine.weights_sha256 == update.sha256 == fresh.engine.weights_sha256
    assert [running.engine.length(slot) for slot in range(3)] == [0, 0, 0]
    assert torch.equal(running.logits(), fresh.logits())
    assert not torch.allclose(running.logits(), before, atol=0.1)


@pytest.mark.parametrize("whole_folder", [True, False])
def test_a_distilled_draft_takes_over_another_of_its_base(
    folders: tuple[Path, Path], tmp_path: Path, whole_folder: bool
) -> None:
    embedding = draft_folder.base_embedding(str(folders[0]))
    for layer, known in enumerate((torch.arange(0, 20), torch.arange(5, 25))):
        draft_folder.save(
            tmp_path / str(layer),
            draft_folder.Draft(
                model=cut(load_plain(folders[0]), [layer]),
                head_token_ids=known,
                head_adapter=None,
                head_weight=embedding[known].float(),
                base=str(folders[0]),
                embedding=embedding,
            ),
        )
    running, fresh = Running(tmp_path / "0"), Running(tmp_path / "1")
    update = running.load(tmp_path / "1" if whole_folder else tmp_path / "1" / draft_folder.WEIGHTS)
    update.install()
    assert running.engine.weights_sha256 == fresh.engine.weights_sha256
    assert torch.equal(running.logits(), fresh.logits())
    with pytest.raises(InvalidArgumentError, match=r"draft\.safetensors"):
        running.load(folders[1])
    tensors = load_file(tmp_path / "1" / draft_folder.WEIGHTS)
    tensors["head.token_ids"] = tensors["head.token_ids"] + 10**6
    save_file(tensors, tmp_path / "changed.safetensors")
    with pytest.raises(InvalidArgumentError, match="can't be read"):
        running.load(tmp_path / "changed.safetensors")


def drop(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["model.layers.1.mlp.up_proj.weight"]


def add(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.2.mlp.up_proj.weight"] = torch.zeros(2)


def reshape(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.norm.weight"] = torch.zeros(7)


def poison(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.embed_tokens.weight"][3, 3] = torch.nan


def count(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.norm.weight"] = torch.zeros(32, dtype=torch.int64)


@pytest.mark.parametrize(
    ("change", "field", "says"),
    [
        (drop, "weights[model.layers.1.mlp.up_proj.weight]", "there"),
        (add, "weights[model.layers.2.mlp.up_proj.weight]", "a tensor of the running model"),
        (reshape, "weights[model.norm.weight]", "of shape [32]"),
        (poison, "weights[model.embed_tokens.weight]", "finite"),
        (count, "weights[model.norm.weight]", "floating-point"),
    ],
)
def test_a_wrong_tensor_is_named(
    running: Running,
    broken: Callable[..., Path],
    change: Callable[[dict[str, torch.Tensor]], None],
    field: str,
    says: str,
) -> None:
    before, sha256 = running.logits(), running.engine.weights_sha256
    with pytest.raises(InvalidArgumentError) as caught:
        running.load(broken(change))
    assert caught.value.metadata["field"] == field
    assert says in caught.value.message
    assert torch.equal(running.logits(), before)
    assert running.engine.weights_sha256 == sha256


def test_bad_paths_and_files(running: Running, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="safetensors"):
        running.load(tmp_path / "nothing")
    torn = tmp_path / "torn.safetensors"
    torn.write_bytes(b"\0" * 100)
    with pytest.raises(InvalidArgumentError, match=r"torn\.safetensors"):
        running.load(torn)


def test_another_tokenizer_names_its_first_token(running: Running, folders: tuple[Path, Path], tmp_path: Path) -> None:
    folder = tmp_path / "other"
    shutil.copytree(folders[1], folder)
    text = (folder / "tokenizer.json").read_text()
    assert '"c": 2' in text
    (folder / "tokenizer.json").write_text(text.replace('"c": 2', '"ç": 2'))
    with pytest.raises(FingerprintMismatchError) as caught:
        running.load(folder)
    assert caught.value.metadata["token_id"] == "2"


def test_other_settings_are_named(running: Running, folders: tuple[Path, Path], tmp_path: Path) -> None:
    folder = tmp_path / "other"
    shutil.copytree(folders[1], folder)
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": 0.1'))
    with pytest.raises(InvalidArgumentError) as caught:
        running.load(folder)
    assert caught.value.metadata["field"] == "config.json: rms_norm_eps"


def test_memory_for_two_is_asked_for_first(
    running: Running, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftproof.engine.updating._free_bytes", lambda device: 1000)
    with pytest.raises(OverloadedError, match="memory"):
        running.load(folders[1])
    monkeypatch.setattr("draftproof.engine.updating._free_bytes", lambda device: 10**9)
    assert isinstance(running.load(folders[1]).sha256, bytes)
