"""A deterministic engine and tokenizer without any model: logits are a hash of the last few tokens."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftproof.engine.interface import Row
from draftproof.engine.rows import check_copy, check_rows
from draftproof.errors import UnsupportedError

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class TableEngine:
    """An `Engine` whose logits depend on the last `order` tokens alone: bit-equal alone, batched, on any machine.

    Logits are uniform with standard deviation `spread`, made from hash words by exact arithmetic only. Overriding
    `logits_after` gives engines that fail in chosen ways.

    Attributes:
        passes: forward passes so far.
        fed: tokens fed so far.
    """

    def __init__(
        self,
        vocab_size: int = 32,
        *,
        order: int = 2,
        seed: int = 0,
        spread: float = 1.5,
        noise: float = 0.0,
        noise_seed: int = 1,
        slots: int = 8,
        max_context: int = 256,
        delay: float = 0.0,
    ) -> None:
        """
        Args:
            vocab_size: V.
            order: how many last tokens the logits depend on, >= 1.
            seed: picks the table.
            spread: standard deviation of the logits.
            noise: share of another table that is mixed in, 0..1; makes drafts of any quality (see `draft`).
            noise_seed: picks that other table.
            slots: KV slots.
            max_context: tokens a slot holds.
            delay: seconds that each forward pass sleeps.
        """
        self.vocab_size = vocab_size
        self.max_context = max_context
        self.slots = slots
        self.name = f"table-{vocab_size}-{order}-{seed}" + (f"-noise{noise}-{noise_seed}" if noise else "")
        self.weights_sha256 = hashlib.sha256(f"{self.name}-{spread}".encode()).digest()
        self.passes = 0
        self.fed = 0
        self.trees = True
        self._order = order
        self._seed = seed
        self._spread = spread
        self._noise = noise
        self._noise_seed = noise_seed
        self._delay = delay
        self._cache: list[list[int]] = [[] for _ in range(slots)]
        self._hanging: list[list[list[int]]] = [[] for _ in range(slots)]

    def draft(self, noise: float, noise_seed: int = 1) -> TableEngine:
        """A draft of this engine: 0 is an exact copy, about 0.2 a good one, 1 unrelated garbage."""
        return TableEngine(
            self.vocab_size,
            order=self._order,
            seed=self._seed,
            spread=self._spread,
            noise=noise,
            noise_seed=noise_seed,
            slots=self.slots,
            max_context=self.max_context,
        )

    def logits_after(self, contexts: Sequence[Sequence[int]]) -> Tensor:
        """Logits of the token after each context, float32 [len(contexts), V]."""
        tails = np.full((len(contexts), self._order), -1, dtype=np.int64)
        for index, context in enumerate(contexts):
            tail = context[-self._order :]
            if tail:
                tails[index, -len(tail) :] = tail
        uniform = self._table(tails, self._seed)
        if self._noise:
            uniform = (1 - self._noise) * uniform + self._noise * self._table(tails, self._noise_seed + (1 << 32))
        return torch.from_numpy((uniform * (self._spread * 2 * math.sqrt(3))).astype(np.float32))

    def forward(self, rows: Sequence[Row]) -> Tensor:
        """Runs all rows; see `Engine.forward`."""
        check_rows(
            rows,
            slots=self.slots,
            max_context=self.max_context,
            ids=self.vocab_size,
            length=self.length,
            trees=self.trees,
        )
        if self._delay:
            time.sleep(self._delay)
        contexts: list[list[int]] = []
        for row in rows:
            cache = self._cache[row.slot]
            del cache[row.start :]
            text = len(row.token_ids) - len(row.parents)
            cache.extend(row.token_ids[:text])
            seen = [cache[max(0, end - self._order) : end] for end in range(row.start + 1, len(cache) + 1)]
            paths: list[list[int]] = [[]]
            for parent, token in zip(row.parents, row.token_ids[text:], strict=True):
                paths.append([*paths[parent], token])
                seen.append([*seen[text - 1], *paths[-1]][-self._order :])
            self._hanging[row.slot] = paths
            contexts.extend(seen[len(seen) - row.logits :])
        self.passes += 1
        self.fed += sum(len(row.token_ids) for row in rows)
        return self.logits_after(contexts)

    def length(self, slot: int) -> int:
        """Cached tokens in the slot."""
        return len(self._cache[slot])

    def truncate(self, slot: int, length: int) -> None:
        """Rolls the slot back to its first `length` tokens; 0 frees it."""
        if not 0 <= length <= len(self._cache[slot]):
            raise ValueError(f"slot {slot} holds {len(self._cache[slot])} tokens, can't keep {length}")
        del self._cache[slot][length:]
        self._hanging[slot] = []

    def keep(self, slot: int, nodes: Sequence[int]) -> None:
        """Keeps a path of the tree that the slot's last row fed; see `Engine.keep`."""
        paths, self._hanging[slot] = self._hanging[slot], []
        kept: list[int] = []
        for node in nodes:
            if not 0 < node < len(paths) or paths[node][:-1] != kept:
                raise ValueError(f"slot {slot}: no path {list(nodes)}")
            kept = paths[node]
        self._cache[slot].extend(kept)

    def copy(self, source: int, slot: int, length: int) -> None:
        """Makes a slot hold the first `length` tokens of another; see `Engine.copy`."""
        check_copy(source, slot, length, slots=self.slots, held=lambda slot: len(self._cache[slot]))
        self._cache[slot] = self._cache[source][:length]

    def cached(self, slot: int) -> tuple[int, ...]:
        """The very tokens a slot holds, for checks of rollback."""
        return tuple(self._cache[slot])

    def _table(self, tails: NDArray[np.int64], seed: int) -> NDArray[np.float64]:
        """Uniform values in [-0.5, 0.5) on a 2^-24 grid, float64 [N, V], of the tails int64 [N, order]."""
        state = np.full(len(tails), _mix(np.array([seed], dtype=np.uint64))[0], dtype=np.uint64)
        for column in tails.astype(np.uint64).T:
            state = _mix(state ^ (column + GOLDEN))
        words = _mix(state[:, None] + GOLDEN * np.arange(1, self.vocab_size + 1, dtype=np.uint64))
        uniform: NDArray[np.float64] = (words >> np.uint64(40)).astype(np.float64) * 2.0**-24 - 0.5
        return uniform


class ByteTokenizer:
    """A `Tokenizer` of single bytes. The last id is the end of sequence.

    Id i < 256 is the byte (first_byte + i) mod 256; ids from 256 on, if any, are the texts "<256>", "<257>", … which
    `encode` never gives. Bytes outside the vocabulary are dropped from prompts.
    """

    def __init__(self, vocab_size: int = 257, *, first_byte: int = 0, has_chat_template: bool = True) -> None:
        self.vocab_size = vocab_size
        self.eos_ids = frozenset({vocab_size - 1})
        self.has_chat_template = has_chat_template
        self._pieces = [
            bytes([(first_byte + i) % 256]) if i < 256 else f"<{i}>".encode() for i in range(vocab_size - 1)
        ]
        self._ids = {piece[0]: i for i, piece in enumerate(self._pieces[:256])}

    def encode(self, text: str) -> list[int]:
        """Ids of the text's UTF-8 bytes."""
        return [self._ids[byte] for byte in text.encode() if byte in self._ids]

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Ids of "role: content" lines and "assistant: "."""
        if not self.has_chat_template:
            raise UnsupportedError("this tokenizer has no chat template", metadata={"field": "chat"})
        lines = [f"{message['role']}: {message['content']}\n" for message in messages]
        return self.encode("".join(lines) + "assistant: ")

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids without the end of sequence; incomplete UTF-8 shows as U+FFFD."""
        return b"".join(self._pieces[i] for i in ids if i < len(self._pieces)).decode(errors="replace")

    def token(self, token_id: int) -> str:
        """ "0x61" for a byte, "<eos>" for the end, "" outside the vocabulary."""
        if token_id in self.eos_ids:
            return "<eos>"
        if not 0 <= token_id < len(self._pieces):
            return ""
        piece = self._pieces[token_id]
        return f"0x{piece[0]:02x}" if token_id < 256 else piece.decode()


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser on uint64 arrays."""
    state = state + GOLDEN
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
