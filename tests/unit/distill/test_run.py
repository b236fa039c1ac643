"""Distillation of a tiny model, from texts to a folder that an engine loads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from draftproof.distill import run as module
from draftproof.distill.corpus import Corpus
from draftproof.distill.prompts import Frame
from draftproof.distill.run import DistillConfig, distill
from draftproof.distill.selftext import Writer, WritingConfig
from draftproof.distill.training import TrainingConfig
from draftproof.engine.config import ModelConfig
from draftproof.engine.interface import Row
from draftproof.engine.loading import load_engine, load_tokenizer
from draftproof.engine.lockstep import Lockstep
from draftproof.errors import ConfigError
from draftproof.testing.tiny import load_plain, make_tiny_model

VOCAB = 48


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("target"), vocab_size=VOCAB, layers=3, max_context=64)


@pytest.fixture
def config(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DistillConfig:
    monkeypatch.setattr(module, "HELD_OUT_EVERY", 4)
    return DistillConfig(
        target=str(target),
        out=tmp_path / "draft",
        work=tmp_path / "work",
        layers=(0, -1),
        head=30,
        tokens=1200,
        slots=20,
        max_length=40,
        training=TrainingConfig(steps=8, batch_tokens=256, micro_tokens=128, warmup=2),
        threads=1,
    )


def silent(stage: str, done: int, total: int, words: str) -> None:
    pass


def interrupt(stage: str, at: int) -> Callable[[str, int, int, str], None]:
    def report(now: str, done: int, total: int, words: str) -> None:
        if now == stage and done >= at:
            raise KeyboardInterrupt

    return report


def weights(folder: Path) -> bytes:
    return (folder / "draft.safetensors").read_bytes()


def test_a_draft_is_made_measured_and_served(config: DistillConfig) -> None:
    stages: list[str] = []
    found = distill(config, lambda stage, done, total, words: stages.append(stage))
    assert list(dict.fromkeys(stages)) == ["writing", "training", "measuring"]
    assert {result.temperature for result in found} == {0.0, 0.7, 1.0}
    assert all(0 < result.alpha <= result.reached for result in found if result.temperature)
    engine = load_engine(ModelConfig(model=str(config.out), slots=2))
    logits = engine.forward([Row(0, 0, [1, 2, 3], 3)])
    assert logits.shape == (3, VOCAB)
    assert torch.isfinite(logits).sum(-1).tolist() == [30] * 3
    tokenizer = load_tokenizer(ModelConfig(model=str(config.out)))
    assert tokenizer.render_chat([{"role": "user", "content": "hi"}])


def test_training_beats_the_fitted_beginning(config: DistillConfig) -> None:
    schedule = replace(config.training, steps=60, lr=5e-3, tv_share=1.0)
    untrained = replace(config.training, steps=1, lr=0.0)
    first = distill(replace(config, training=untrained), silent)
    last = distill(replace(config, training=schedule, out=config.out / "2", work=config.work / "2"), silent)
    assert last[-1].alpha > first[-1].alpha + 0.01


@pytest.mark.parametrize(("stage", "at"), [("writing", 700), ("training", 5)])
def test_a_resumed_run_makes_the_same_draft(
    config: DistillConfig, monkeypatch: pytest.MonkeyPatch, stage: str, at: int
) -> None:
    monkeypatch.setattr(module, "SHARD_TOKENS", 400)
    monkeypatch.setattr(module, "CHECKPOINT_SECONDS", 0.0)
    distill(config, silent)
    other = replace(config, out=config.out.with_name("other"), work=config.work.with_name("other-work"))
    with pytest.raises(KeyboardInterrupt):
        distill(other, interrupt(stage, at))
    with pytest.raises(ConfigError, match="--resume"):
        distill(other, silent)
    resumed: list[tuple[str, int]] = []
    distill(replace(other, resume=True), lambda stage, done, total, words: resumed.append((stage, done)))
    assert min(done for now, done in resumed if now == stage) > (400 if stage == "writing" else 4)
    if stage == "training":
        assert weights(config.out) == weights(other.out)


def test_texts_of_a_file_are_learned(config: DistillConfig, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("the cat sat on the mat. " * 200)
    distill(replace(config, text=file), silent)
    corpus = Corpus(config.work / "texts")
    first, second = [text for path in corpus.shards() for text in corpus.read(path)][:2]
    assert first.answer_from == 1
    assert "cat" in load_tokenizer(ModelConfig(model=config.target)).decode(second.token_ids.tolist())


def test_writing_and_training_take_turns(config: DistillConfig) -> None:
    order: list[str] = []
    distill(replace(config, rounds=2), lambda stage, done, total, words: order.append(stage))
    turns = [stage for at, stage in enumerate(order) if at == 0 or order[at - 1] != stage]
    assert turns == ["writing", "training", "writing", "training", "measuring"]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"head": 0}, "head"),
        ({"layers": ()}, "layers"),
        ({"temperatures": (-1.0,)}, "temperatures"),
        ({"minutes": 0.0}, "minutes"),
        ({"text": Path("nowhere")}, "text"),
        ({"rounds": 0}, "rounds"),
    ],
)
def test_wrong_options_are_named(config: DistillConfig, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        replace(config, **changes)
    assert caught.value.metadata["field"] == field


def test_layers_that_the_target_lacks_are_named(config: DistillConfig) -> None:
    with pytest.raises(ConfigError, match="layers"):
        distill(replace(config, layers=(0, 3)), silent)


def test_a_text_has_to_have_room_for_the_template(target: Path) -> None:
    with pytest.raises(ConfigError, match="max_length"):
        Writer(
            Lockstep(load_plain(target), lanes=1, places=8, vocab_size=VOCAB),
            Frame((1, 2, 3, 4), (5, 6, 7)),
            frozenset(),
            WritingConfig(),
        )
