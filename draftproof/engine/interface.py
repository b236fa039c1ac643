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
        parents: of the last fed tokens where these are the nodes of a tree, fewer than len(token_ids); empty: a text.
            Node 0 is the token before them, node i + 1 the i-th of them, and parents[i] in [0, i] the node it hangs
            from: it sees the text up to node 0 and the nodes on its own path, at positions that count by depth.
    """

    slot: int
    start: int
    token_ids: Sequence[int]
    logits: int
    parents: Sequence[int] = ()


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
    trees: bool
    """Whether it takes rows with nodes of a tree."""

    def forward(self, rows: Sequence[Row]) -> Tensor:
        """Runs prefill, verification and decode rows in one pass.

        Returns:
            Logits [sum(row.logits), V] in row order, float (the model's dtype, or float32 where the CPU lacks it), on
            the engine's output device; the caller's, who may write into them.
            Position i of a row's logits is the distribution of the token after the i-th of its last fed tokens.
        The nodes of a tree take room in the slot, but don't count as cached; the next pass or rollback of the slot
        forgets them, unless `keep` comes first.

        Raises:
            ValueError: a row is out of its slot's bounds, or a slot appears twice.
            UnsupportedError: a row holds a tree, and this engine computes none.
        """
        ...

    def keep(self, slot: int, nodes: Sequence[int]) -> None:
        """Keeps a path of the tree that the slot's last row fed, as if its tokens alone had been fed; drops the rest.

        Args:
            slot: whose.
            nodes: from a child of node 0 downwards, each the child of the one before it.

        Raises:
            ValueError: there is no such path.
        """
        ...

    def length(self, slot: int) -> int:
        """Cached tokens in the slot."""
        ...

    def truncate(self, slot: int, length: int) -> None:
        """Rolls the slot back to its first `length` tokens; 0 frees it."""
        ...

    def copy(self, source: int, slot: int, length: int) -> None:
        """Makes a slot hold the first `length` tokens of another, and nothing else.

        Raises:
            ValueError: there is no such slot, both are one, or the source holds fewer tokens.
        """
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
