"""Distillation from beginning to end: texts, student, training, measuring, the folder. Every part can be resumed."""

from __future__ import annotations

import itertools
import json
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch

from draftproof.distill.batches import batches, collate
from draftproof.distill.corpus import Corpus, Text
from draftproof.distill.measure import Acceptance, acceptance
from draftproof.distill.prompts import OPENINGS, chat_frame
from draftproof.distill.selftext import Writer, WritingConfig
from draftproof.distill.student import Student, head_tokens
from draftproof.distill.training import Trainer, TrainingConfig
from draftproof.engine import draft_folder
from draftproof.engine.config import EMBEDDED, DType, ModelConfig
from draftproof.engine.interface import Tokenizer
from draftproof.engine.loading import Source, find, load_model, load_tokenizer
from draftproof.engine.lockstep import Lockstep
from draftproof.engine.projections import trained_dtype
from draftproof.engine.student import cut, save_tokenizer
from draftproof.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

SHARD_TOKENS: Final = 16_384
HELD_OUT_EVERY: Final = 20
CHECKPOINT: Final = "student.pt"
CHECKPOINT_SECONDS: Final = 60.0
_WARM_STEPS: Final = 3
_FITTED: Final = 16

Report = Callable[[str, int, int, str], None]
"""Stage, how much of it is done, how much there is, and what it looks like."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillConfig:
    """What to make.

    Attributes:
        target: model name, as everywhere.
        out: folder of the draft.
        work: folder of texts and checkpoints; both survive and can be used again.
        layers: of the target, in the student's order; negative ones count from the end.
        head: tokens that the draft can propose.
        train_head: trains rows of its own instead of a map in front of the target's.
        tokens: that the target writes.
        text: a file to learn from instead.
        temperatures: of the target's answers, by turns.
        slots: texts that are written at once.
        max_length: most tokens of a text.
        rounds: how often writing and training take turns; later texts come to a student that has begun.
        training: the schedule; its seed is everybody's.
        minutes: trains for about so long instead of training.steps.
        resume: goes on in a work folder that isn't empty.
        threads: of PyTorch; None leaves its choice.
    """

    target: str
    out: Path
    work: Path
    layers: tuple[int, ...]
    head: int = 8192
    train_head: bool = False
    tokens: int = 500_000
    text: Path | None = None
    temperatures: tuple[float, ...] = (1.0, 0.7, 1.0, 0.7, 0.0)
    slots: int = 96
    max_length: int = 448
    rounds: int = 1
    training: TrainingConfig
    minutes: float | None = None
    resume: bool = False
    threads: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("head", 1), ("tokens", 1), ("slots", 1), ("rounds", 1), ("max_length", 8)):
            if getattr(self, name) < least:
                raise ConfigError(name, f"must be at least {least}, got {getattr(self, name)}")
        if not self.layers:
            raise ConfigError("layers", "must name at least one layer")
        if not self.temperatures or min(self.temperatures) < 0.0:
            raise ConfigError("temperatures", f"must be 0 or more each, got {list(self.temperatures)}")
        if self.minutes is not None and self.minutes <= 0:
            raise ConfigError("minutes", f"must be more than 0, got {self.minutes}")
        if self.text is not None and not self.text.is_file():
            raise ConfigError("text", f"no file {self.text}")


def distill(config: DistillConfig, report: Report) -> list[Acceptance]:
    """Makes the draft.

    Returns:
        Acceptance on held-out texts at each temperature; also in draft.json of the work folder.

    Raises:
        ConfigError: settings that don't fit the target or the work folder.
        ModelLoadError: the target can't be loaded.
        UnsupportedError: the target's logits aren't its head's rows times a state.
    """
    _claim(config)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    dtype: DType = "auto" if trained_dtype() == torch.bfloat16 else "float32"
    model_config = ModelConfig(model=config.target, dtype=dtype, device="cpu", max_context=config.max_length)
    source = find(model_config)
    tokenizer = load_tokenizer(model_config)
    target = load_model(model_config)
    vocab_size = min(target.get_output_embeddings().weight.shape[0], tokenizer.vocab_size)
    writing = Lockstep(target, lanes=config.slots, places=config.max_length, vocab_size=vocab_size)
    target_rows = writing.rows.to(trained_dtype())
    corpus = Corpus(config.work / "texts")
    trainer: Trainer | None = None
    for turn in range(1, config.rounds + 1):
        _write(config, writing, tokenizer, corpus, config.tokens * turn // config.rounds, report)
        texts = [text for path in corpus.shards() for text in corpus.read(path)]
        learned = [text for text in texts if not _held_out(text)]
        if trainer is None:
            trainer = _begin(config, target, learned, target_rows, tokenizer.eos_ids)
        until = trainer.config.steps * turn // config.rounds
        _train(trainer, learned, until, config.work / CHECKPOINT, report)
    assert trainer is not None
    student = trainer.student
    _save(config, student, source)
    held_out = [text for text in texts if _held_out(text)]
    results = []
    temperatures = sorted({0.0, 0.7, 1.0, *config.temperatures})
    for number, temperature in enumerate(temperatures):
        report("measuring", number, len(temperatures), "")
        found = acceptance(student, held_out, target_rows, temperature)
        if found is not None:
            results.append(found)
    (config.work / "draft.json").write_text(json.dumps([asdict(found) for found in results], indent=1) + "\n")
    return results


def _claim(config: DistillConfig) -> None:
    """Makes the work folder, or refuses one that another run began."""
    begun = config.work.is_dir() and any(config.work.iterdir())
    if begun and not config.resume:
        raise ConfigError("resume", f"{config.work} holds texts or checkpoints; go on with --resume, or remove it")
    config.work.mkdir(parents=True, exist_ok=True)


def _held_out(text: Text) -> bool:
    # by a hash: the number itself also decides about temperature and opening
    return zlib.crc32(str(text.index).encode()) % HELD_OUT_EVERY == 0


def _write(
    config: DistillConfig, model: Lockstep, tokenizer: Tokenizer, corpus: Corpus, wanted: int, report: Report
) -> None:
    """Adds to the corpus until it has the wanted tokens, or the text file is at its end."""
    done = corpus.indices()
    have = corpus.tokens()
    if have >= wanted:
        return
    frame = chat_frame(tokenizer)
    # two turns in three begin with nothing
    openings = [tuple(tokenizer.encode(words)) if third else () for words in OPENINGS for third in (1, 0, 0)]
    writing = WritingConfig(
        seed=config.training.seed,
        temperatures=config.temperatures,
        openings=openings if frame.after else ((),),
        max_length=config.max_length,
    )
    writer = Writer(model, frame, tokenizer.eos_ids, writing)
    if config.text is None:
        texts = writer.write(index for index in itertools.count() if index not in done)
    else:
        ids = tokenizer.encode(config.text.read_text())
        texts = writer.read(ids, skip=done)
    buffer: list[Text] = []
    buffered = 0
    for text in texts:
        buffer.append(text)
        buffered += len(text.log_total)
        report("writing", min(have + buffered, wanted), wanted, "")
        if buffered >= SHARD_TOKENS or have + buffered >= wanted:
            corpus.append(buffer)
            have += buffered
            buffer, buffered = [], 0
            if have >= wanted:
                break
    if buffer:
        corpus.append(buffer)


def _begin(
    config: DistillConfig, target: PreTrainedModel, texts: Sequence[Text], target_rows: Tensor, eos_ids: frozenset[int]
) -> Trainer:
    """A student that knows nothing yet, or the one of the last checkpoint."""
    checkpoint = config.work / CHECKPOINT
    token_ids = head_tokens(texts, config.head, target_rows, eos_ids)
    training = config.training
    depth = target.config.get_text_config().num_hidden_layers
    layers = [layer % depth if -depth <= layer < 0 else layer for layer in config.layers]
    if checkpoint.is_file():
        token_ids, steps = Trainer.peek(checkpoint)
        training = replace(training, steps=steps if config.minutes is not None else training.steps)
    elif config.minutes is not None:
        trial = Trainer(Student(cut(target, layers), token_ids, config.train_head), training)
        seconds: list[float] = []
        started = time.monotonic()
        for _ in trial.run(texts, _WARM_STEPS):
            seconds.append(time.monotonic() - started)
            started = time.monotonic()
        training = replace(training, steps=max(1, round(config.minutes * 60 / min(seconds))))
    trainer = Trainer(Student(cut(target, layers), token_ids, config.train_head), training)
    if checkpoint.is_file():
        trainer.load(checkpoint)
    else:
        trainer.student.fit(collate([texts[i] for i in members]) for members in batches(texts, 4096, 0, 0)[:_FITTED])
    return trainer


def _train(trainer: Trainer, texts: Sequence[Text], until: int, checkpoint: Path, report: Report) -> None:
    saved = time.monotonic()
    for progress in trainer.run(texts, until):
        words = f"α {progress.accepted:.3f}, top-1 {progress.agreed:.3f}"
        report("training", progress.step, trainer.config.steps, words)
        if progress.step == until or time.monotonic() - saved > CHECKPOINT_SECONDS:
            trainer.save(checkpoint)
            saved = time.monotonic()


def _save(config: DistillConfig, student: Student, target: Source) -> None:
    """Writes the draft's folder; what it would share with a target in a local folder is copied into it."""
    local = Path(target.location).is_dir() and target.name != EMBEDDED
    adapted = student.adapter.requires_grad
    draft_folder.save(
        config.out,
        draft_folder.Draft(
            model=student.body,
            head_token_ids=student.token_ids,
            head_adapter=student.adapter if adapted else None,
            head_weight=None if adapted else student.rows,
            base=None if local else target.name,
            embedding=draft_folder.base_embedding(target.location),
        ),
    )
    if local:
        save_tokenizer(target.location, config.out)
