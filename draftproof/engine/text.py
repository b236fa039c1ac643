"""Streaming text: ids in, characters out, never half of one, cut at stop strings."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass

from draftproof.engine.interface import Tokenizer

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


@dataclass(frozen=True, slots=True)
class TextStep:
    """What one token adds.

    Attributes:
        text: new text, maybe empty.
        stopped: a stop string is complete; nothing follows.
    """

    text: str
    stopped: bool


class TextStream:
    """Text of one growing sequence of ids.

    What the pushes and the flush return, joined, is the text of all ids decoded at once, up to a stop string. Held
    back are characters whose bytes haven't all arrived, and text that may be the start of a stop string. The first stop
    string to be completed wins, as if the text came one character at a time; the longest of those that end there.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self._detokenizer = _Detokenizer(tokenizer)
        self._stop = tuple(text for text in stop if text)
        self._held = ""
        self.stopped = False

    def fork(self) -> TextStream:
        """A copy that goes its own way."""
        other = copy.copy(self)
        other._detokenizer = self._detokenizer.fork()
        return other

    def push(self, token_id: int) -> TextStep:
        """Takes the next id."""
        if self.stopped:
            return TextStep("", stopped=True)
        return TextStep(self._release(self._detokenizer.push(token_id)), self.stopped)

    def flush(self) -> str:
        """Ends the sequence: what was held back, up to a stop string if one is in it."""
        if self.stopped:
            return ""
        text = self._release(self._detokenizer.flush()) + ("" if self.stopped else self._held)
        self._held = ""
        return text

    def _release(self, text: str) -> str:
        """Appends text and returns what can no longer become part of a stop string."""
        if not self._stop:
            return text
        scanned = len(self._held)
        pending = self._held + text
        for end in range(scanned + 1, len(pending) + 1):
            cuts = [end - len(stop) for stop in self._stop if pending.endswith(stop, 0, end)]
            if cuts:
                self.stopped = True
                self._held = ""
                return pending[: min(cuts)]
        kept = self._possible_start(pending)
        self._held = pending[len(pending) - kept :]
        return pending[: len(pending) - kept]

    def _possible_start(self, text: str) -> int:
        """Length of the longest end of text that begins a stop string."""
        longest = max(len(stop) for stop in self._stop) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stop):
                return length
        return 0


class _Detokenizer:
    """Incremental decoding by difference: text of a short window of ids, less the text already given for it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._given: list[str] = []
        self._window: list[int] = []
        self._window_text = ""
        self._ids_given = 0
        self._chars_given = 0

    def fork(self) -> _Detokenizer:
        """A copy that goes its own way."""
        other = copy.copy(self)
        other._ids, other._given, other._window = [*self._ids], [*self._given], [*self._window]
        return other

    def push(self, token_id: int) -> str:
        """Text that the id completes, maybe none."""
        self._ids.append(token_id)
        self._window.append(token_id)
        before, self._window_text = self._window_text, self._tokenizer.decode(self._window)
        if self._window_text == before and not self._tokenizer.decode([token_id]):
            return ""
        # A run of <0xNN> tokens is decoded as a whole, and one bad byte spoils all of it: wait for its end.
        if self._window_text.endswith(_REPLACEMENT) or _BYTE_TOKEN.fullmatch(self._tokenizer.token(token_id)):
            return ""
        text = self._window_text[self._chars_given :]
        if text:
            # What was given now is the context of what comes next; what was its own context is no longer needed.
            self._window = self._window[self._ids_given :]
            self._window_text = self._tokenizer.decode(self._window)
            self._ids_given, self._chars_given = len(self._window), len(self._window_text)
            self._given.append(text)
        return text

    def flush(self) -> str:
        """The rest."""
        return self._tokenizer.decode(self._ids)[sum(map(len, self._given)) :]
