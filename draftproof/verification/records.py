"""What a verdict can say beside its tokens: log-probabilities and the trace of p, q, u. Nothing here draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities of one committed token under the target, natural log.

    Attributes:
        logprob: under the distribution it was drawn from or judged by.
        raw_logprob: under the unmodified logits.
        top_ids: likeliest tokens of the processed p, descending, without those of probability 0.
        top_logprobs: their log p, processed.
        top_raw_logprobs: their log p, raw.
    """

    logprob: float
    raw_logprob: float
    top_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]
    top_raw_logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Masses:
    """Part or all of a distribution.

    Attributes:
        ids: int64[M] by descending mass; None where `masses` holds all V in id order.
        masses: float32[M] or float32[V].
    """

    ids: NDArray[np.int64] | None
    masses: NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionRecord:
    """p, q, u and verdict at one committed position.

    Attributes:
        position: counted from the start of the original prompt.
        block_start: where the block began.
        proposed_id: the proposal examined here, of several the last one tried; None at bonus and target positions.
        accepted: whether it was accepted.
        accept_uniform: u of the test; None where nothing was proposed, and under the coupled rule.
        accept_probability: what it was compared with: the proposal passed iff accept_uniform is less. Under the block
            rule the longest prefix whose last proposal passes stays; in a tree p is what the proposals tried before it
            left of it. None where accept_uniform is.
        draw_uniform: u that drew a residual, bonus or target token; None where the proposal was accepted, and under
            the coupled rule.
        p_proposed: p(proposed_id), 0 where nothing was proposed.
        q_proposed: q(proposed_id), 0 where nothing was proposed.
        p: the largest masses of p, or all.
        q: the same of q; None where nothing was proposed.
    """

    position: int
    block_start: int
    proposed_id: int | None
    accepted: bool
    accept_uniform: float | None
    accept_probability: float | None
    draw_uniform: float | None
    p_proposed: float
    q_proposed: float
    p: Masses
    q: Masses | None


def token_logprobs(
    p: Tensor, logits: Tensor, tokens: Sequence[int], alternatives: Sequence[int]
) -> list[TokenLogprobs]:
    """Log-probabilities of one token per row.

    Args:
        p: float[R, V], rows with a positive finite total.
        logits: float[R, V], unmodified.
        tokens: R ids.
        alternatives: how many of the likeliest tokens to list, per row.
    """
    p, logits = p.double(), logits.double()
    log_total, log_raw_total = p.sum(dim=-1, keepdim=True).log(), logits.logsumexp(dim=-1, keepdim=True)
    most = min(max(alternatives), p.shape[-1])
    own = torch.tensor(tokens, device=p.device)[:, None]
    ids = torch.cat([own, p.topk(most, dim=-1).indices], dim=1)
    processed = (p.gather(1, ids).log() - log_total).tolist()
    raw = (logits.gather(1, ids) - log_raw_total).tolist()
    found = []
    for row, count in enumerate(alternatives):
        # Equal masses go to the lower id, as everywhere.
        ranked = sorted(zip(ids[row].tolist(), processed[row], raw[row], strict=True), key=lambda t: (-t[1], t[0]))
        top = [entry for entry in dict.fromkeys(ranked) if entry[1] > float("-inf")][:count]
        found.append(
            TokenLogprobs(
                logprob=processed[row][0],
                raw_logprob=raw[row][0],
                top_ids=tuple(token for token, _, _ in top),
                top_logprobs=tuple(value for _, value, _ in top),
                top_raw_logprobs=tuple(value for _, _, value in top),
            )
        )
    return found


def p_masses(p: Tensor, top: int) -> Masses:
    """The `top` largest masses of one row of p, all for 0: float[V]."""
    p = p.double() / p.double().sum()
    if top == 0:
        return Masses(None, p.float().cpu().numpy())
    values, ids = p.topk(min(top, len(p)))
    return Masses(ids.cpu().numpy(), values.float().cpu().numpy())


def q_masses(ids: NDArray[np.int64], masses: NDArray[np.float64], top: int, vocab_size: int) -> Masses:
    """The `top` largest masses of a q [M], all for 0."""
    if top == 0:
        full = np.zeros(vocab_size, np.float32)
        full[ids] = masses
        return Masses(None, full)
    order = np.argsort(-masses, kind="stable")[:top]
    return Masses(np.asarray(ids[order]), masses[order].astype(np.float32))
