"""The frame that a chat template puts around a user's turn, and openings that steer what the target asks itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from draftproof.engine.interface import Tokenizer

OPENINGS: Final = (
    "Write a Python function that",
    "Write a function in JavaScript that",
    "Fix the bug in this code:\n\n```python\ndef",
    "Explain what this code does:\n\n```python\n",
    "Write a SQL query that",
    "Summarize the following text in one sentence:\n\n",
    "Summarize the text below, keeping its wording where you can.\n\nText: The",
    "Extract all names from this text:\n\n",
    "Rewrite the following paragraph so that it is easier to read:\n\n",
    "Translate to French:",
    "Correct the grammar of this text and repeat the whole text:\n\n",
    "Make a list of",
    "What is the difference between",
    "How do I",
    "Explain",
    "Write a short story about",
    "Write an email to",
    "Give me",
    "Why",
    "Who",
)
"""Beginnings of user turns; the target writes on from them."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Ids around a user's turn.

    Attributes:
        before: ids from the beginning of the text to where the user's words begin.
        after: ids from the end of the user's words to where the answer begins; its first one tells that the turn ends.
            Empty without a chat template: then there are no turns.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]


def chat_frame(tokenizer: Tokenizer) -> Frame:
    """The frame of the tokenizer's chat template: what two conversations of different words have in common."""
    if not tokenizer.has_chat_template:
        return Frame(tuple(tokenizer.encode("")) or (min(tokenizer.eos_ids),), ())
    one, two = (tokenizer.render_chat([{"role": "user", "content": words}]) for words in ("a", "the"))
    before = _common(one, two)
    after = _common(one[::-1], two[::-1])[::-1]
    return Frame(tuple(before), tuple(after))


def _common(one: list[int], two: list[int]) -> list[int]:
    length = 0
    while length < min(len(one), len(two)) and one[length] == two[length]:
        length += 1
    return one[:length]
