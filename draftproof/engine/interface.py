"""The seam between services and models: what an engine and a tokenizer offer, whatever is behind them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence's share of a ragged forward pass.

    Attributes:
        slot: KV slot in [0, engine.slots).
        start: cached tokens to keep, <= engine.length(slot); the pass rolls the slot back to it first.
        token_ids: tokens to feed after them, at least one.
        logits: how many of the last fed positions return logits, 0..len(token_ids).
    """

    slot: int
    start: int
    token_ids: Sequence[int]
    logits: int


@dataclass(frozen=True, slots=True)
class Update:
    """Weights that are loaded and checked, but not in use yet.

    Attributes:
        sha256: tells them from others, 32 bytes.
        install: makes the engine compute with them, and forget all keys and values of the old ones; for the thread that
            owns the engine, between two passes.
    """

    sha256: bytes
    install: Callable[[], None]


class Engine(Protocol):
    """A causal language model with a KV cache in slots. Not thread-safe: one thread owns it."""

    name: str
    vocab_size: int
    """V, the real vocabulary; padded logits are cut off."""
    max_context: int
    """Most tokens a slot holds."""
    slots: int
    weights_sha256: bytes
    """Tells one set of weights from another, 32 bytes."""

    def forward(self, rows: Sequence[Row]) -> Tensor:
        """Runs prefill, verification and decode rows in one pass.

        Returns:
            Logits [sum(row.logits), V] in row order, float (the model's dtype, or float32 where the CPU lacks it), on
            the engine's output device.
            Position i of a row's logits is the distribution of the token after the i-th of its last fed tokens.

        Raises:
            ValueError: a row is out of its slot's bounds, or a slot appears twice.
        """
        ...

    def length(self, slot: int) -> int:
        """Cached tokens in the slot."""
        ...

    def truncate(self, slot: int, length: int) -> None:
        """Rolls the slot back to its first `length` tokens; 0 frees it."""
        ...


class Tokenizer(Protocol):
    """Text to ids and back."""

    vocab_size: int
    """V: largest id + 1 that stands for a token."""
    eos_ids: frozenset[int]
    has_chat_template: bool

    def encode(self, text: str) -> list[int]:
        """Ids of a plain prompt, special tokens as the tokenizer's default says."""
        ...

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Ids of a conversation with the generation prompt at its end.

        Raises:
            UnsupportedError: the model has no chat template.
        """
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids, special tokens left out; incomplete UTF-8 shows as U+FFFD."""
        ...

    def token(self, token_id: int) -> str:
        """The vocabulary entry of an id, for fingerprints and messages; "" for an id without one."""
        ...
