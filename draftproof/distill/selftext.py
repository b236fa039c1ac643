"""The target writes chat: a user's turn from the template's empty one, then the answer, many texts a step."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftproof.distill.corpus import Text
from draftproof.distill.prompts import Frame
from draftproof.engine.interface import Row
from draftproof.engine.states import StatesEngine
from draftproof.errors import ConfigError

_TOP: Final = 64
"""Tokens among which most draws fall."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WritingConfig:
    """How texts are written.

    Attributes:
        seed: of every random number.
        temperatures: of the answers, by turns; the user's turns are drawn at 1.
        openings: ids that begin the user's turn, by turns; an empty one leaves the whole turn to the target.
        max_user: most tokens of a user's turn beyond its opening; never more than half of a text.
        max_length: most tokens of a text.
    """

    seed: int = 0
    temperatures: Sequence[float] = (1.0, 0.7, 1.0, 0.7, 0.0)
    openings: Sequence[Sequence[int]] = ((),)
    max_user: int = 96
    max_length: int = 448


@dataclass(slots=True)
class _Open:
    """A text being written in a slot."""

    index: int
    temperature: float
    numbers: np.random.Generator
    tokens: list[int]
    fed: int = 0
    user_until: int = 0
    answer_from: int | None = None
    scored_from: int = 0
    scored: int = 0
    states: NDArray[np.uint16] = field(default_factory=lambda: np.empty((0, 0), np.uint16))
    log_total: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))

    def add(self, states: Tensor, log_total: Tensor, length: int) -> None:
        """What the target thought of the next positions; small tensors by the thousand would fragment the heap."""
        if self.scored == 0:
            self.states = np.empty((length, states.shape[1]), np.uint16)
            self.log_total = np.empty(length, np.float32)
        until = self.scored + len(states)
        self.states[self.scored : until] = states.view(torch.uint16).numpy()
        self.log_total[self.scored : until] = log_total.numpy()
        self.scored = until


class Writer:
    """Writes texts with all slots of an engine."""

    def __init__(self, engine: StatesEngine, frame: Frame, eos_ids: frozenset[int], config: WritingConfig) -> None:
        self._engine = engine
        self._frame = frame
        self._eos = eos_ids
        self._config = config
        self._length = min(config.max_length, engine.max_context)
        self._room = (self._length - len(frame.before) - len(frame.after)) // 2
        if self._room < 1:
            least = len(frame.before) + len(frame.after) + 2
            raise ConfigError("max_length", f"must be at least {least} for this chat template, got {self._length}")
        self._top = min(_TOP, engine.vocab_size)

    def write(self, indices: Iterator[int]) -> Iterator[Text]:
        """Texts of these numbers, in the order they finish. Each depends on its number alone, up to rounding."""
        open_texts: dict[int, _Open] = {}
        while True:
            for slot in range(self._engine.slots):
                if slot not in open_texts and (index := next(indices, None)) is not None:
                    open_texts[slot] = self._begin(index)
            if not open_texts:
                return
            for slot in self._step(open_texts):
                text = open_texts.pop(slot)
                self._engine.truncate(slot, 0)
                yield self._finished(text)

    def read(self, token_ids: Sequence[int], skip: Container[int] = ()) -> Iterator[Text]:
        """What the target thinks of a given text, cut into pieces of the greatest length that begin like a prompt."""
        first = list(self._frame.before[:1])
        size = self._length - len(first)
        for index, at in enumerate(range(0, len(token_ids), size)):
            tokens = [*first, *token_ids[at : at + size]]
            if index in skip or len(tokens) < 2:
                continue
            logits, states = self._engine.forward([Row(0, 0, tokens[:-1], len(tokens) - 1)])
            yield Text(
                index=index,
                temperature=1.0,
                token_ids=np.array(tokens, np.int32),
                answer_from=1,
                scored_from=0,
                states=states.view(torch.uint16).numpy(),
                log_total=logits.float().logsumexp(-1).numpy(),
            )

    def forget(self) -> None:
        """Frees the slots of texts that were not finished."""
        for slot in range(self._engine.slots):
            self._engine.truncate(slot, 0)

    def _begin(self, index: int) -> _Open:
        config = self._config
        opening = config.openings[index % len(config.openings)][: self._room]
        tokens = [*self._frame.before, *opening]
        return _Open(
            index=index,
            temperature=config.temperatures[index % len(config.temperatures)],
            numbers=np.random.Generator(np.random.Philox(key=[config.seed, index])),
            tokens=tokens,
            user_until=len(self._frame.before) + min(len(opening) + config.max_user, self._room),
            answer_from=None if self._frame.after else len(tokens),
            scored_from=len(tokens) - 1,
        )

    def _step(self, texts: dict[int, _Open]) -> list[int]:
        """One pass; the slots whose text is finished."""
        slots = sorted(texts)
        rows = []
        for slot in slots:
            text = texts[slot]
            fed = text.tokens[text.fed :]
            rows.append(Row(slot, text.fed, fed, 1 if text.fed == 0 else len(fed)))
        logits, states = self._engine.forward(rows)
        logits = logits.float()
        values, ids = logits.topk(self._top, dim=-1)
        log_total = logits.logsumexp(-1)
        at = 0
        finished = []
        for row, slot in zip(rows, slots, strict=True):
            text = texts[slot]
            text.fed = len(text.tokens)
            until = at + row.logits
            text.add(states[at:until], log_total[at:until], self._length)
            at = until
            if self._extend(text, logits[at - 1], values[at - 1], ids[at - 1]):
                finished.append(slot)
        return finished

    def _extend(self, text: _Open, logits: Tensor, values: Tensor, ids: Tensor) -> bool:
        """Adds the next tokens; whether the text ends with them."""
        after = self._frame.after
        if text.answer_from is None:
            token = self._draw(text, 1.0, logits, values, ids)
            if token == after[0] or token in self._eos or len(text.tokens) >= text.user_until:
                text.tokens.extend(after)
                text.answer_from = len(text.tokens)
            else:
                text.tokens.append(token)
            return len(text.tokens) >= self._length
        token = self._draw(text, text.temperature, logits, values, ids)
        text.tokens.append(token)
        return token in self._eos or len(text.tokens) >= self._length

    def _draw(self, text: _Open, temperature: float, logits: Tensor, values: Tensor, ids: Tensor) -> int:
        """One token of softmax(logits / temperature): among the likeliest by inverse CDF, seldom among all."""
        if temperature == 0.0:
            return int(ids[0])
        scaled = logits / temperature
        total = scaled.logsumexp(-1)
        cumulative = (values / temperature - total).double().exp().cumsum(-1)
        number = text.numbers.random()
        if number < float(cumulative[-1]):
            return int(ids[int(torch.searchsorted(cumulative, number, right=True))])
        rest = (scaled - total).double().exp().index_fill(0, ids, 0.0).cumsum(-1)
        number = (number - float(cumulative[-1])) / (1.0 - float(cumulative[-1])) * float(rest[-1])
        return int(torch.searchsorted(rest, number, right=True).clamp(max=len(rest) - 1))

    def _finished(self, text: _Open) -> Text:
        tokens = text.tokens[: self._length]
        count = len(tokens) - 1 - text.scored_from
        return Text(
            index=text.index,
            temperature=text.temperature,
            token_ids=np.array(tokens, np.int32),
            answer_from=len(tokens) if text.answer_from is None else text.answer_from,
            scored_from=text.scored_from,
            states=text.states[:count].copy(),
            log_total=text.log_total[:count].copy(),
        )
