"""The engine: one causal model over KV slots, many sequences a pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from draftproof.engine.forwards import Forward
from draftproof.engine.interface import Row
from draftproof.engine.layout import BatchLayout, Span, plan
from draftproof.engine.rows import check_copy, check_rows, check_slot
from draftproof.engine.slots import KvSlots

INVARIANT_WIDTH: Final = 16
"""Tokens of each pass in batch-invariant mode; passes begin at multiples of it."""


class TransformersEngine:
    """A causal transformers model, run by one of `draftproof.engine.forwards`. One thread owns it.

    In batch-invariant mode a row is computed alone, in passes of 16 positions that begin at multiples of 16, padded at
    the end, and a pass that begins inside such a block computes the block anew. Each position is then always computed
    by the same kernels on the same shapes, so its logits are the same bits whatever the other rows, the chunks of the
    prompt, the block of proposals it belongs to, and the rollbacks before it. It covers dense models on one kind of
    device with one count of threads and one release of PyTorch; not mixtures of experts, where the shape of an expert's
    work depends on the padding's routing.
    """

    def __init__(
        self,
        run: Forward,
        *,
        name: str,
        vocab_size: int,
        slots: int,
        max_context: int,
        weights_sha256: bytes,
        batch_invariant: bool = False,
        settings: PreTrainedConfig | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.name = name
        self.vocab_size = vocab_size
        self.max_context = max_context
        self.slots = slots
        self.weights_sha256 = weights_sha256
        self.batch_invariant = batch_invariant
        # A node's place in its block of 16 depends on its siblings.
        self.trees = not batch_invariant
        self.run = run
        self.settings = settings
        self.device = device or torch.device("cpu")
        context = -(-max_context // INVARIANT_WIDTH) * INVARIANT_WIDTH if batch_invariant else max_context
        self._store = KvSlots(slots, context)

    @property
    def kv_bytes(self) -> int:
        """KV budget: bytes of all slots at full length."""
        return self._store.bytes

    @property
    def layers_cached(self) -> frozenset[int]:
        """Indices of the layers whose keys and values are kept."""
        return frozenset(self._store.layers)

    def length(self, slot: int) -> int:
        """Cached tokens in the slot."""
        check_slot(slot, self.slots)
        return self._store.length(slot)

    def token_ids(self, slot: int) -> tuple[int, ...]:
        """The cached tokens themselves."""
        check_slot(slot, self.slots)
        return self._store.token_ids(slot)

    def truncate(self, slot: int, length: int) -> None:
        """Rolls the slot back to its first `length` tokens; 0 frees it."""
        check_slot(slot, self.slots)
        if not 0 <= length <= self._store.length(slot):
            raise ValueError(f"slot {slot} holds {self._store.length(slot)} tokens, can't keep {length}")
        with torch.inference_mode():
            self._store.truncate(slot, length)

    def copy(self, source: int, slot: int, length: int) -> None:
        """Makes a slot hold the first `length` tokens of another, and nothing else; see `Engine.copy`."""
        check_copy(source, slot, length, slots=self.slots, held=self._store.length)
        with torch.inference_mode():
            self._store.copy(source, slot, length)

    def replace(self, run: Forward, weights_sha256: bytes) -> None:
        """Goes on with other weights of the same model; nothing cached under the old ones is left."""
        for slot in range(self.slots):
            self.truncate(slot, 0)
        self.run = run
        self.weights_sha256 = weights_sha256

    @torch.inference_mode()
    def forward(self, rows: Sequence[Row]) -> Tensor:
        """Runs prefill, verification and decode rows in one pass; see `Engine.forward`."""
        check_rows(
            rows,
            slots=self.slots,
            max_context=self.max_context,
            ids=self.run.input_ids_limit,
            length=self._store.length,
            trees=self.trees,
        )
        if not rows:
            return torch.empty(0, self.vocab_size)
        for row in rows:
            self._store.truncate(row.slot, row.start)
            self._store.will_write(row.slot, row.start + len(row.token_ids))
        if self.batch_invariant:
            logits = torch.cat([self._alone(row) for row in rows])
        else:
            logits = self._together(rows)
        for row in rows:
            text = len(row.token_ids) - len(row.parents)
            self._store.commit(row.slot, row.token_ids[:text])
            self._store.hang(row.slot, row.token_ids[text:], row.parents)
        return logits

    @torch.inference_mode()
    def keep(self, slot: int, nodes: Sequence[int]) -> None:
        """Keeps a path of the tree that the slot's last row fed; see `Engine.keep`."""
        check_slot(slot, self.slots)
        self._store.keep(slot, nodes)

    def _together(self, rows: Sequence[Row]) -> Tensor:
        """One packed pass over all rows."""
        spans = {row.slot: Span(row.slot, row.start, len(row.token_ids), tuple(row.parents)) for row in rows}
        fed = {row.slot: row.token_ids for row in rows}
        layout = BatchLayout(self._store, plan(list(spans.values())))
        token_ids: list[int] = []
        positions: list[int] = []
        ends: dict[int, int] = {}
        for span in (span for group in layout.groups for span in group.spans):
            token_ids.extend(fed[span.slot])
            positions.extend(span.positions())
            ends[span.slot] = len(token_ids)
        keep = [index for row in rows for index in range(ends[row.slot] - row.logits, ends[row.slot])]
        return self._run(layout, token_ids, positions, keep)

    def _alone(self, row: Row) -> Tensor:
        """Passes of one fixed shape over one row."""
        width = INVARIANT_WIDTH
        begin = row.start - row.start % width
        tokens = [*self._store.token_ids(row.slot)[begin:], *row.token_ids]
        end = row.start + len(row.token_ids)
        wanted_from = end - row.logits
        logits = []
        for start in range(begin, end, width):
            stop = min(start + width, end)
            padding = start + width - stop
            self._store.will_write(row.slot, start + width)
            layout = BatchLayout(self._store, plan([Span(row.slot, start, width)]))
            # Padding comes after every real token and is written over later; its position only has to be legal.
            positions = [*range(start, stop), *[self.max_context - 1] * padding]
            keep = [position - start for position in range(start, start + width)]
            ids = [*tokens[start - begin : stop - begin], *[0] * padding]
            block = self._run(layout, ids, positions, keep)
            logits.append(block[max(wanted_from - start, 0) : stop - start])
        return torch.cat(logits)

    def _run(self, layout: BatchLayout, token_ids: list[int], positions: list[int], keep: list[int]) -> Tensor:
        """The model over packed tokens; logits [len(keep), V] of the packed indices in keep."""
        return self.run(layout, token_ids, positions, keep)[:, : self.vocab_size]
