"""KV slots: preallocated keys and values, one slot a sequence, rolled back by forgetting a length."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import torch
from torch import Tensor

# Absent outside Linux.
_NO_HUGE_PAGES: Final[int | None] = getattr(mmap, "MADV_NOHUGEPAGE", None)


@dataclass(frozen=True, slots=True)
class LayerKv:
    """One layer's cache, on that layer's device.

    Attributes:
        keys: [slots, kv_heads, context, head_dim], the model's dtype.
        values: [slots, kv_heads, context, value_dim], the model's dtype.
    """

    keys: Tensor
    values: Tensor


class KvSlots:
    """The cache of every layer. Layers appear when their first keys arrive, so they follow the model's device map."""

    def __init__(self, slots: int, context: int) -> None:
        self.slots = slots
        self.context = context
        self.layers: dict[int, LayerKv] = {}
        self._ids: list[list[int]] = [[] for _ in range(slots)]
        self._hanging: list[tuple[list[int], list[int]]] = [([], []) for _ in range(slots)]
        self._written = [0] * slots

    @property
    def bytes(self) -> int:
        """Size of all slots at full length."""
        return sum(kv.keys.nbytes + kv.values.nbytes for kv in self.layers.values())

    def length(self, slot: int) -> int:
        """Cached tokens in the slot."""
        return len(self._ids[slot])

    def token_ids(self, slot: int) -> tuple[int, ...]:
        """The tokens whose keys and values the slot holds."""
        return tuple(self._ids[slot])

    def truncate(self, slot: int, length: int) -> None:
        """Forgets all but the first `length` tokens; 0 also wipes the slot."""
        del self._ids[slot][length:]
        self._hanging[slot] = [], []
        if length == 0 and self._written[slot]:
            # A masked value is multiplied by zero, and zero times NaN is NaN: one request's NaN must not outlive it.
            for kv in self.layers.values():
                kv.keys[slot, :, : self._written[slot]] = 0
                kv.values[slot, :, : self._written[slot]] = 0
            self._written[slot] = 0

    def copy(self, source: int, slot: int, length: int) -> None:
        """Makes a slot hold the first `length` tokens of another; what it held before is wiped."""
        self.truncate(slot, 0)
        for kv in self.layers.values():
            kv.keys[slot, :, :length] = kv.keys[source, :, :length]
            kv.values[slot, :, :length] = kv.values[source, :, :length]
        self.will_write(slot, length)
        self._ids[slot] = self._ids[source][:length]

    def will_write(self, slot: int, end: int) -> None:
        """Notes that positions below `end` are about to be written."""
        self._written[slot] = max(self._written[slot], end)

    def commit(self, slot: int, token_ids: Sequence[int]) -> None:
        """Appends tokens whose keys and values have been written."""
        self._ids[slot].extend(token_ids)

    def hang(self, slot: int, token_ids: Sequence[int], parents: Sequence[int]) -> None:
        """Remembers a tree whose keys and values have been written, node after node, behind the slot's tokens."""
        self._hanging[slot] = list(token_ids), list(parents)

    def keep(self, slot: int, nodes: Sequence[int]) -> None:
        """Moves the keys and values of a path of that tree together, next to the slot's tokens, and forgets the rest.

        Raises:
            ValueError: there is no such path.
        """
        token_ids, parents = self._hanging[slot]
        above = 0
        for node in nodes:
            if not 0 < node <= len(parents) or parents[node - 1] != above:
                raise ValueError(f"slot {slot}: no path {list(nodes)} in a tree with parents {parents}")
            above = node
        begin = len(self._ids[slot])
        moved = [(begin + i, begin + node - 1) for i, node in enumerate(nodes) if node != i + 1]
        if moved:
            into, out_of = slice(moved[0][0], moved[-1][0] + 1), [at for _, at in moved]
            for kv in self.layers.values():
                # indexing with a list copies before anything is written over
                kv.keys[slot, :, into] = kv.keys[slot][:, out_of]
                kv.values[slot, :, into] = kv.values[slot][:, out_of]
        self._ids[slot].extend(token_ids[node - 1] for node in nodes)
        self._hanging[slot] = [], []

    def layer(self, index: int, key: Tensor, value: Tensor) -> LayerKv:
        """The layer's cache, made on first use to fit key and value [kv_heads, N, dim] and their device."""
        kv = self.layers.get(index)
        if kv is None:
            kv = LayerKv(self._zeros(key), self._zeros(value))
            self.layers[index] = kv
        return kv

    def _zeros(self, like: Tensor) -> Tensor:
        shape = (self.slots, like.shape[0], self.context, like.shape[2])
        if like.device.type != "cpu":
            return torch.zeros(shape, dtype=like.dtype, device=like.device)
        # Zero pages of the kernel's, small ones: they take memory only once a sequence reaches them.
        pages = mmap.mmap(-1, prod(shape) * like.element_size(), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if _NO_HUGE_PAGES is not None:
            pages.madvise(_NO_HUGE_PAGES)
        return torch.frombuffer(pages, dtype=like.dtype).view(shape)
