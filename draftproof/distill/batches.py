"""Texts in memory, cut into batches of equal lengths in an order that a seed decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from draftproof.distill.corpus import Text


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts side by side, padded at the end.

    Attributes:
        token_ids: int64 [B, n].
        kept: int64 [N], flat indices into [B, n] of the positions that the target thought about.
        states: what its head got there, bfloat16 [N, H].
        log_total: log Σ exp of its logits there, float32 [N].
    """

    token_ids: Tensor
    kept: Tensor
    states: Tensor
    log_total: Tensor


def batches(texts: Sequence[Text], tokens: int, seed: int, epoch: int) -> list[list[int]]:
    """An epoch's batches, as indices into texts: shuffled, similar lengths together, at most `tokens` with padding."""
    shuffle = np.random.Generator(np.random.Philox(key=[seed, epoch]))
    order = shuffle.permutation(len(texts))
    made: list[list[int]] = []
    pool = 512
    for at in range(0, len(order), pool):
        members = sorted(order[at : at + pool], key=lambda i: len(texts[i].token_ids))
        batch: list[int] = []
        for member in members:
            if batch and len(texts[member].token_ids) * (len(batch) + 1) > tokens:
                made.append(batch)
                batch = []
            batch.append(int(member))
        made.append(batch)
    return [made[i] for i in shuffle.permutation(len(made))]


def collate(texts: Sequence[Text], answers_only: bool = False) -> Batch:
    """Puts texts side by side; answers_only leaves out the positions before the answer."""
    longest = max(len(text.token_ids) for text in texts)
    token_ids = torch.zeros(len(texts), longest, dtype=torch.long)
    kept, states, log_total = [], [], []
    for row, text in enumerate(texts):
        token_ids[row, : len(text.token_ids)] = torch.from_numpy(text.token_ids.astype(np.int64))
        skip = max(0, text.answer_from - 1 - text.scored_from) if answers_only else 0
        first = row * longest + text.scored_from
        kept.append(torch.arange(first + skip, first + len(text.log_total)))
        states.append(text.states[skip:])
        log_total.append(text.log_total[skip:])
    return Batch(
        token_ids,
        torch.cat(kept),
        torch.from_numpy(np.concatenate(states)).view(torch.bfloat16),
        torch.from_numpy(np.concatenate(log_total)),
    )
