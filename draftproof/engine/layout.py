"""Who is who in a packed pass: [1, N] tokens of several sequences, and what each of them may attend to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

import torch
from torch import Tensor

from draftproof.engine.slots import KvSlots


@dataclass(frozen=True, slots=True)
class Span:
    """One sequence's consecutive tokens in the pass.

    Attributes:
        slot: where its keys and values live.
        start: position of its first token in the sequence.
        count: tokens in the pass.
        parents: of the last of them where these are the nodes of a tree, as in `Row`.
    """

    slot: int
    start: int
    count: int
    parents: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        """Keys its last token sees, itself included; of a tree, one past its last node's place."""
        return self.start + self.count

    @property
    def root(self) -> int:
        """Position of the token that the tree hangs from; without one, of the last token."""
        return self.end - len(self.parents) - 1

    def positions(self) -> list[int]:
        """Position of each token in its text: of a node, as deep as it hangs below the root."""
        nodes = [self.root]
        for parent in self.parents:
            nodes.append(nodes[parent] + 1)
        return [*range(self.start, self.root), *nodes]

    def ancestry(self) -> Tensor:
        """Which nodes are on each node's path, itself included: bool [n, n] for n nodes."""
        above = torch.eye(len(self.parents), dtype=torch.bool)
        for node, parent in enumerate(self.parents):
            if parent:
                above[node] |= above[parent - 1]
        return above


@dataclass(frozen=True, slots=True)
class Group:
    """Spans of equal count, next to one another in the pass, that attend in one call.

    Attributes:
        offset: index of its first token in the pass.
        spans: ordered by slot.
    """

    offset: int
    spans: tuple[Span, ...]

    @property
    def count(self) -> int:
        """Tokens per span."""
        return self.spans[0].count

    @property
    def tokens(self) -> int:
        """Tokens of all spans."""
        return self.count * len(self.spans)

    @property
    def end(self) -> int:
        """Keys that the longest span sees."""
        return max(span.end for span in self.spans)

    @property
    def has_tree(self) -> bool:
        """Whether some tokens don't see all those before them."""
        return any(span.parents for span in self.spans)

    @property
    def slot_range(self) -> tuple[int, int] | None:
        """First slot and one past the last if the slots are consecutive, so that a view reaches them."""
        first, last = self.spans[0].slot, self.spans[-1].slot
        return (first, last + 1) if last - first + 1 == len(self.spans) else None


@dataclass(slots=True)
class BatchLayout:
    """A pass as the attention function needs to know it.

    Attributes:
        store: the slots that are written and read.
        groups: all spans, in packed order.
        layers_seen: indices of the layers that attended; the loader compares them with the model's.
    """

    store: KvSlots
    groups: tuple[Group, ...]
    layers_seen: set[int] = field(default_factory=set)
    _tensors: dict[tuple[object, ...], Tensor] = field(default_factory=dict)

    def slot_indices(self, device: torch.device) -> Tensor:
        """Slot of each packed token, int64 [N]."""
        return self._per_token("slot", device)

    def places(self, device: torch.device) -> Tensor:
        """Where the keys and values of each packed token go in its slot, int64 [N]."""
        return self._per_token("place", device)

    def group_slots(self, group: Group, device: torch.device) -> Tensor:
        """Slots of a group, int64 [g]."""
        key = ("group", group.offset, device)
        if key not in self._tensors:
            self._tensors[key] = torch.tensor([span.slot for span in group.spans], device=device)
        return self._tensors[key]

    def mask(
        self, group: Group, first_key: int, window: int | None, repeats: int, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """What a group's tokens may not see, as an additive mask of 0 and -inf.

        Returns:
            [g, 1, repeats * count, end - first_key] of the dtype; the count rows repeat for each query head that
            shares a key head.
        """
        key = ("mask", group.offset, first_key, window, repeats, dtype, device)
        if key not in self._tensors:
            starts = torch.tensor([span.start for span in group.spans], device=device)
            queries = starts[:, None, None] + torch.arange(group.count, device=device)[:, None]
            keys = torch.arange(first_key, group.end, device=device)
            hidden = keys > queries
            if group.has_tree:
                keys, queries = self._in_tree(group, first_key, hidden)
            if window is not None:
                hidden |= keys <= queries - window
            mask = torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, float("-inf"))
            self._tensors[key] = mask.repeat(1, repeats, 1)[:, None]
        return self._tensors[key]

    def _in_tree(self, group: Group, first_key: int, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Hides the nodes of a tree from each other where they aren't on one path: hidden bool [g, count, keys].

        Returns:
            Positions of the keys, int64 [g, 1, keys], and of the queries, int64 [g, count, 1].
        """
        queries = torch.tensor([span.positions() for span in group.spans], device=hidden.device)[:, :, None]
        keys = torch.arange(first_key, group.end, device=hidden.device).repeat(len(group.spans), 1, 1)
        for row, span in enumerate(group.spans):
            nodes = len(span.parents)
            if nodes:
                columns = slice(span.root + 1 - first_key, span.end - first_key)
                hidden[row, -nodes:, columns] = ~span.ancestry().to(hidden.device)
                keys[row, 0, columns] = queries[row, -nodes:, 0]
        return keys, queries

    def _per_token(self, what: str, device: torch.device) -> Tensor:
        key = (what, device)
        if key not in self._tensors:
            spans = [span for group in self.groups for span in group.spans]
            if what == "slot":
                values = [span.slot for span in spans for _ in range(span.count)]
            else:
                values = [place for span in spans for place in range(span.start, span.end)]
            self._tensors[key] = torch.tensor(values, device=device)
        return self._tensors[key]


def plan(spans: Sequence[Span]) -> tuple[Group, ...]:
    """Orders spans into groups of equal count whose lengths are close enough to share one padded call."""
    groups: list[Group] = []
    offset = 0
    for _, equal in groupby(sorted(spans, key=lambda span: span.count), key=lambda span: span.count):
        for members in _by_length(list(equal)):
            group = Group(offset, tuple(sorted(members, key=lambda span: span.slot)))
            groups.append(group)
            offset += group.tokens
    return tuple(groups)


def _by_length(spans: list[Span]) -> list[list[Span]]:
    """Splits off long spans while padding the others to their length would more than double the work."""
    longest = max(span.end for span in spans)
    if longest * len(spans) <= 2 * sum(span.end for span in spans) + 64:
        return [spans]
    long = [span for span in spans if 2 * span.end > longest]
    short = [span for span in spans if 2 * span.end <= longest]
    return [*_by_length(short), long] if short else [long]
