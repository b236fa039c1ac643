"""How well a student drafts: acceptance on held-out texts, against the target's whole vocabulary.

A proposal at position i of a block is judged only if those before it were accepted. On a text that the target wrote, a
token x that the draft might have proposed was accepted with weight min(1, q(x)/p(x)), so the rate at position i is the
mean of Σ min(p, q) there, weighted by the product of the weights of the i − 1 tokens before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftproof.distill.batches import Batch, batches, collate
from draftproof.distill.corpus import Text
from draftproof.distill.student import Student

POSITIONS: Final = 8
"""Positions of a block that are measured."""

_CHUNK: Final = 256


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Acceptance at one temperature, on answers written at that temperature.

    Attributes:
        temperature: of target and draft.
        alpha: mean of Σ min(p, q).
        by_position: rate at each position of a block, given that it is judged.
        agreement: share of positions where target and draft have the same likeliest token.
        reached: probability that the target gives to the tokens of the head.
        positions: tokens measured.
    """

    temperature: float
    alpha: float
    by_position: tuple[float, ...]
    agreement: float
    reached: float
    positions: int


@torch.inference_mode()
def acceptance(student: Student, texts: Sequence[Text], target_rows: Tensor, temperature: float) -> Acceptance | None:
    """Measures on the texts whose answers were written at this temperature; None if there are none.

    Args:
        student: in evaluation mode.
        texts: held out of training.
        target_rows: rows of the target's whole head, [V, H]; products run in their dtype.
        temperature: 0 or more.
    """
    texts = [text for text in texts if text.temperature == temperature and text.answer_from < len(text.token_ids)]
    if not texts:
        return None
    head = student.head().to(target_rows.dtype)
    rates: list[NDArray[np.float64]] = []
    weights: list[NDArray[np.float64]] = []
    agreed = reached = 0.0
    for members in batches(texts, 4096, 0, 0):
        chosen = [texts[i] for i in members]
        batch = collate(chosen, answers_only=True)
        following = torch.from_numpy(np.concatenate([text.token_ids[text.answer_from :] for text in chosen])).long()
        found = _compare(student, batch, following, head, target_rows, temperature)
        at = 0
        for text in chosen:
            count = len(text.token_ids) - text.answer_from
            rates.append(found.rate[at : at + count].double().numpy())
            weights.append(found.weight[at : at + count].double().numpy())
            at += count
        agreed += found.agreed
        reached += found.reached
    count = sum(len(rate) for rate in rates)
    return Acceptance(
        temperature,
        float(np.concatenate(rates).mean()),
        _by_position(rates, weights),
        agreed / count,
        reached / count,
        count,
    )


@dataclass(slots=True)
class _Compared:
    rate: Tensor
    weight: Tensor
    agreed: float
    reached: float


def _compare(
    student: Student, batch: Batch, following: Tensor, head: Tensor, target_rows: Tensor, temperature: float
) -> _Compared:
    states = student.states(batch.token_ids, batch.kept).to(target_rows.dtype)
    token_ids = student.token_ids.long()
    columns = torch.full((target_rows.shape[0],), -1).index_put_((token_ids,), torch.arange(len(token_ids)))
    rates, weights = [], []
    agreed = reached = 0.0
    for at in range(0, len(states), _CHUNK):
        part = slice(at, at + _CHUNK)
        p = _distribution(batch.states[part].to(target_rows.dtype) @ target_rows.T, temperature)
        q = _distribution(states[part] @ head.T, temperature)
        seen = p[:, token_ids]
        rates.append(torch.minimum(seen, q).sum(-1))
        column = columns[following[part]]
        q_next = q.gather(-1, column.clamp(min=0)[:, None])[:, 0] * (column >= 0)
        p_next = p.gather(-1, following[part, None])[:, 0]
        weights.append(torch.where(p_next > 0, (q_next / p_next).clamp(max=1.0), 0.0))
        agreed += float((token_ids[q.argmax(-1)] == p.argmax(-1)).sum())
        reached += float(seen.sum())
    return _Compared(torch.cat(rates), torch.cat(weights), agreed, reached)


def _distribution(logits: Tensor, temperature: float) -> Tensor:
    logits = logits.float()
    if temperature == 0.0:
        return torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    return torch.softmax(logits / temperature, -1)


def _by_position(rates: Sequence[NDArray[np.float64]], weights: Sequence[NDArray[np.float64]]) -> tuple[float, ...]:
    """Rates at positions 1 … POSITIONS of blocks that begin anywhere."""
    found = []
    reaching = [np.ones_like(rate) for rate in rates]
    for position in range(POSITIONS):
        judged = sum(float(reach.sum()) for reach in reaching)
        accepted = sum(float((reach * rate[position:]).sum()) for reach, rate in zip(reaching, rates, strict=True))
        found.append(accepted / judged if judged else float("nan"))
        reaching = [
            (reach * weight[position : position + len(reach)])[:-1]
            for reach, weight in zip(reaching, weights, strict=True)
        ]
    return tuple(found)
