"""The target writes chat: a user's turn from the template's empty one, then the answer, many texts a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch
from torch import Tensor

from draftproof.distill.corpus import Text
from draftproof.distill.prompts import Frame
from draftproof.engine.interface import Row
from draftproof.engine.states import StatesEngine

_TOP: Final = 64
"""Tokens among which most draws fall."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WritingConfig:
    """How texts are written.

    Attributes:
        seed: of every random number.
        temperatures: of the answers, by turns; the user's turns are drawn at 1.
        openings: ids that begin the user's turn, by turns; an empty one leaves the whole turn to the target.
        max_user: most tokens of a user's turn beyond its opening.
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
    states: list[Tensor] = field(default_factory=list)
    log_total: list[Tensor] = field(default_factory=list)


class Writer:
    """Writes texts with all slots of an engine."""

    def __init__(self, engine: StatesEngine, frame: Frame, eos_ids: frozenset[int], config: WritingConfig) -> None:
        self._engine = engine
        self._frame = frame
        self._eos = eos_ids
        self._config = config
        self._length = min(config.max_length, engine.max_context)
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

    def _begin(self, index: int) -> _Open:
        config = self._config
        opening = config.openings[index % len(config.openings)]
        tokens = [*self._frame.before, *opening]
        return _Open(
            index=index,
            temperature=config.temperatures[index % len(config.temperatures)],
            numbers=np.random.Generator(np.random.Philox(key=[config.seed, index])),
            tokens=tokens,
            user_until=len(tokens) + config.max_user,
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
            text.states.append(states[at : at + row.logits].clone())
            text.log_total.append(log_total[at : at + row.logits])
            at += row.logits
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
            states=torch.cat(text.states)[:count].view(torch.uint16).numpy(),
            log_total=torch.cat(text.log_total)[:count].numpy(),
        )
