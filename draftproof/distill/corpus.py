"""Texts and what the target thought at each of their positions, in shards on disk."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import load_file, save_file


@dataclass(frozen=True, slots=True)
class Text:
    """One text with the target's distributions.

    Attributes:
        index: its number in the corpus; tells which random numbers made it.
        temperature: what its answer was drawn at.
        token_ids: int32 [n].
        answer_from: where the answer begins; n or more if there is none.
        scored_from: position whose next token is the first with a distribution.
        states: what the target's head got at positions scored_from … n − 2, bfloat16 as uint16 [m, H].
        log_total: log Σ exp of the target's logits there, float32 [m].
    """

    index: int
    temperature: float
    token_ids: NDArray[np.int32]
    answer_from: int
    scored_from: int
    states: NDArray[np.uint16]
    log_total: NDArray[np.float32]


class Corpus:
    """A folder of shards. A shard is complete or not there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def shards(self) -> list[Path]:
        """Complete shards, in the order they were written."""
        return sorted(self.folder.glob("shard-*.safetensors"))

    def indices(self) -> set[int]:
        """Numbers of the texts on disk."""
        found: set[int] = set()
        for path in self.shards():
            with safe_open(path, "numpy") as shard:
                found.update(shard.get_tensor("index").tolist())
        return found

    def tokens(self) -> int:
        """Positions with a distribution, over all shards."""
        total = 0
        for path in self.shards():
            with safe_open(path, "numpy") as shard:
                total += shard.get_slice("log_total").get_shape()[0]
        return total

    def append(self, texts: Sequence[Text]) -> Path:
        """Writes one more shard."""
        tensors: dict[str, NDArray[Any]] = {
            "index": np.array([text.index for text in texts], np.int64),
            "temperature": np.array([text.temperature for text in texts], np.float64),
            "answer_from": np.array([text.answer_from for text in texts], np.int32),
            "scored_from": np.array([text.scored_from for text in texts], np.int32),
            "length": np.array([len(text.token_ids) for text in texts], np.int32),
            "token_ids": np.concatenate([text.token_ids for text in texts]).astype(np.int32),
            "states": np.concatenate([text.states for text in texts]),
            "log_total": np.concatenate([text.log_total for text in texts]),
        }
        path = self.folder / f"shard-{len(self.shards()):05d}.safetensors"
        part = path.with_suffix(".part")
        save_file(tensors, part)
        os.replace(part, path)
        return path

    def read(self, path: Path) -> Iterator[Text]:
        """The texts of a shard."""
        shard = load_file(path)
        at = scored = 0
        for index, temperature, answer, start, length in zip(
            shard["index"],
            shard["temperature"],
            shard["answer_from"],
            shard["scored_from"],
            shard["length"],
            strict=True,
        ):
            count = int(length) - 1 - int(start)
            yield Text(
                int(index),
                round(float(temperature), 6),
                shard["token_ids"][at : at + length],
                int(answer),
                int(start),
                shard["states"][scored : scored + count],
                shard["log_total"][scored : scored + count],
            )
            at += int(length)
            scored += count
