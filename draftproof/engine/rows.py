"""Which rows a pass may have."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from draftproof.engine.interface import Row
from draftproof.errors import UnsupportedError


def check_slot(slot: int, slots: int) -> None:
    """Raises ValueError where there is no such slot."""
    if not 0 <= slot < slots:
        raise ValueError(f"slot {slot} is not in [0, {slots})")


def check_copy(source: int, slot: int, length: int, *, slots: int, held: Callable[[int], int]) -> None:
    """Refuses a copy before it changes anything.

    Args:
        source: slot to copy from.
        slot: slot to copy to.
        length: tokens to copy.
        slots: of the engine.
        held: cached tokens of a slot.

    Raises:
        ValueError: there is no such slot, both are one, or the source holds fewer tokens.
    """
    check_slot(source, slots)
    check_slot(slot, slots)
    if source == slot:
        raise ValueError(f"slot {slot} can't be copied to itself")
    if not 0 <= length <= held(source):
        raise ValueError(f"slot {source} holds {held(source)} tokens, can't copy {length}")


def check_rows(
    rows: Sequence[Row], *, slots: int, max_context: int, ids: int, length: Callable[[int], int], trees: bool
) -> None:
    """Refuses a pass before it changes anything.

    Args:
        rows: the pass.
        slots: of the engine.
        max_context: most tokens of a slot.
        ids: token ids that the model's embedding knows, padding included.
        length: cached tokens of a slot.
        trees: whether the engine computes them.

    Raises:
        ValueError: a row is out of its slot's bounds, or a slot appears twice.
        UnsupportedError: a row holds a tree, and the engine computes none.
    """
    seen: set[int] = set()
    for row in rows:
        check_slot(row.slot, slots)
        if row.slot in seen:
            raise ValueError(f"slot {row.slot} appears twice in one pass")
        seen.add(row.slot)
        count = len(row.token_ids)
        if count == 0:
            raise ValueError(f"slot {row.slot}: a row feeds at least one token")
        if not 0 <= row.start <= length(row.slot):
            raise ValueError(f"slot {row.slot} holds {length(row.slot)} tokens, can't keep {row.start}")
        if row.start + count > max_context:
            raise ValueError(f"slot {row.slot}: {row.start + count} tokens are over the limit {max_context}")
        if not 0 <= row.logits <= count:
            raise ValueError(f"slot {row.slot}: {row.logits} logits from {count} tokens")
        if min(row.token_ids) < 0 or max(row.token_ids) >= ids:
            raise ValueError(f"slot {row.slot}: token ids must be in [0, {ids})")
        if row.parents and not trees:
            raise UnsupportedError("this engine computes no token trees", metadata={"field": "parents"})
        if len(row.parents) >= count:
            raise ValueError(f"slot {row.slot}: {len(row.parents)} nodes in {count} tokens leave no token to hang from")
        for i, parent in enumerate(row.parents):
            if not 0 <= parent <= i:
                raise ValueError(f"slot {row.slot}: the parent of node {i + 1} must be in [0, {i}], got {parent}")
