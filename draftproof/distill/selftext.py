"""The target writes chat: a user's turn from the template's empty one, then the answer, many texts a step."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftproof.distill.corpus import Text
from draftproof.distill.prompts import Frame
from draftproof.engine.lockstep import Lockstep
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
    """A text on its way through a lane.

    Attributes:
        fed: tokens that the model has seen.
        scored_from: see `Text`.
        answer_from: see `Text`; None while the user speaks.
        user_until: most tokens by which the user's turn ends.
        numbers: the text's own; None for a text that is given.
    """

    index: int
    temperature: float
    tokens: list[int]
    fed: int
    scored_from: int
    answer_from: int | None
    states: NDArray[np.uint16]
    log_total: NDArray[np.float32]
    user_until: int = 0
    numbers: np.random.Generator | None = None

    @property
    def drawn_at(self) -> float:
        """Temperature of the next draw."""
        return 1.0 if self.answer_from is None else self.temperature


class Writer:
    """Writes texts with all lanes of a model."""

    def __init__(self, model: Lockstep, frame: Frame, eos_ids: frozenset[int], config: WritingConfig) -> None:
        self._model = model
        self._frame = frame
        self._eos = eos_ids
        self._config = config
        self._length = min(config.max_length, model.places)
        self._room = (self._length - len(frame.before) - len(frame.after)) // (2 if frame.after else 1)
        if self._room < 1:
            least = len(frame.before) + len(frame.after) + (2 if frame.after else 1)
            raise ConfigError("max_length", f"must be at least {least} for this chat template, got {self._length}")
        self._top = min(_TOP, model.vocab_size)

    def write(self, indices: Iterable[int]) -> Iterator[Text]:
        """Texts of these numbers, in the order they finish. Each depends on its number alone, up to rounding."""
        self._model.share(self._frame.before[:-1])
        return self._run(self._begin(index) for index in indices)

    def read(self, token_ids: Sequence[int], skip: Container[int] = ()) -> Iterator[Text]:
        """What the target thinks of a given text, cut into pieces of the greatest length that begin like a prompt."""
        first = self._frame.before[:1]
        size = self._length - len(first)
        pieces = ([*first, *token_ids[at : at + size]] for at in range(0, len(token_ids), size))
        self._model.share(())
        return self._run(
            self._open(index, 1.0, tokens, 0, answer_from=1)
            for index, tokens in enumerate(pieces)
            if index not in skip and len(tokens) > 1
        )

    def _begin(self, index: int) -> _Open:
        config = self._config
        opening = config.openings[index % len(config.openings)][: self._room]
        text = self._open(
            index,
            config.temperatures[index % len(config.temperatures)],
            [*self._frame.before, *opening],
            len(self._frame.before) - 1,
            answer_from=None,
        )
        text.scored_from = len(text.tokens) - 1
        text.user_until = len(self._frame.before) + min(len(opening) + config.max_user, self._room)
        text.numbers = np.random.Generator(np.random.Philox(key=[config.seed, index]))
        if not self._frame.after:
            text.answer_from = len(text.tokens)
        return text

    def _open(self, index: int, temperature: float, tokens: list[int], fed: int, answer_from: int | None) -> _Open:
        # one piece of memory a text: small tensors by the thousand would fragment the heap
        states = np.empty((self._length, self._model.rows.shape[1]), np.uint16)
        return _Open(index, temperature, tokens, fed, fed, answer_from, states, np.empty(self._length, np.float32))

    def _run(self, texts: Iterator[_Open]) -> Iterator[Text]:
        lanes: dict[int, _Open] = {}
        while True:
            for lane in range(self._model.lanes):
                if lane not in lanes and (text := next(texts, None)) is not None:
                    lanes[lane] = text
                    self._model.begin(lane)
            if not lanes:
                return
            for lane in self._step(lanes):
                yield self._finished(lanes.pop(lane))

    def _step(self, lanes: dict[int, _Open]) -> list[int]:
        """One pass; the lanes whose text is finished."""
        # a lane without a text computes nothing of use
        fed = [lanes[lane].tokens[lanes[lane].fed] if lane in lanes else 0 for lane in range(self._model.lanes)]
        logits, states = self._model.step(fed)
        values, ids = logits.topk(self._top, dim=-1)
        p = logits.softmax(-1)
        # softmax is much faster here than logsumexp, and tells as much
        log_total = (values[:, 0] - p.gather(1, ids[:, :1])[:, 0].log()).numpy()
        cooled = [lane for lane, text in lanes.items() if text.drawn_at not in (0.0, 1.0)]
        if cooled:
            heats = torch.tensor([[lanes[lane].drawn_at] for lane in cooled])
            p[cooled] = (logits[cooled] / heats).softmax(-1)
        cumulative = p.gather(1, ids).double().cumsum(-1)
        kept = states.bfloat16().view(torch.uint16).numpy()
        finished = []
        for lane, text in lanes.items():
            if text.fed >= text.scored_from:
                text.states[text.fed - text.scored_from] = kept[lane]
                text.log_total[text.fed - text.scored_from] = log_total[lane]
            text.fed += 1
            if text.numbers is None:
                if text.fed == len(text.tokens) - 1:
                    finished.append(lane)
            elif text.fed == len(text.tokens) and self._extend(text, p[lane], cumulative[lane], ids[lane]):
                finished.append(lane)
        return finished

    def _extend(self, text: _Open, p: Tensor, cumulative: Tensor, ids: Tensor) -> bool:
        """Adds the next tokens; whether the text ends with them."""
        after = self._frame.after
        token = int(ids[0]) if text.drawn_at == 0.0 else _draw(text, p, cumulative, ids)
        if text.answer_from is None:
            if token == after[0] or token in self._eos or len(text.tokens) >= text.user_until:
                text.tokens.extend(after)
                text.answer_from = len(text.tokens)
            else:
                text.tokens.append(token)
            return len(text.tokens) >= self._length
        text.tokens.append(token)
        return token in self._eos or len(text.tokens) >= self._length

    def _finished(self, text: _Open) -> Text:
        # a turn may end past the greatest length, and of tokens that were not fed nothing is known
        tokens = text.tokens[: min(self._length, text.fed + 1)]
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


def _draw(text: _Open, p: Tensor, cumulative: Tensor, ids: Tensor) -> int:
    """One token of p [V] by inverse CDF: among the likeliest (ids and their cumulative p), seldom among all."""
    assert text.numbers is not None
    number = text.numbers.random()
    if number < float(cumulative[-1]):
        return int(ids[int(torch.searchsorted(cumulative, number, right=True))])
    rest = p.double().index_fill(0, ids, 0.0).cumsum(-1)
    number = (number - float(cumulative[-1])) / (1.0 - float(cumulative[-1])) * float(rest[-1])
    return int(torch.searchsorted(rest, number, right=True).clamp(max=len(rest) - 1))
