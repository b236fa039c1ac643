"""The distance between target and student over a reduced head, and its gradient, without a graph over the logits.

p is the target's distribution over the whole vocabulary, seen at the head's tokens alone; q the student's, which is
zero elsewhere. Up to a constant

    KL = −Σ p log q,    TV = 1 − Σ min(p, q),

with sums over the head, and 1 − TV is the acceptance probability. With q = softmax(z), m = Σ p, a = [q < p] and
ā = Σ q·a, the gradients with respect to z are m·q − p and q·(ā − a).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

_CHUNK: Final = 512


@dataclass(frozen=True, slots=True)
class Targets:
    """The target at N positions.

    Attributes:
        states: what its head got, [N, H].
        log_total: log Σ exp of its logits over the whole vocabulary, float32 [N].
        rows: its head's rows for the M tokens, [M, H]; products run in their dtype.
    """

    states: Tensor
    log_total: Tensor
    rows: Tensor


@dataclass(slots=True)
class Sums:
    """Sums over positions: divide by `count`.

    Attributes:
        kl: −Σ p log q.
        accepted: Σ min(p, q), the acceptance probability.
        agreed: positions whose likeliest token of the head is the same.
        reached: Σ p over the head, which no student can exceed.
        count: positions.
    """

    kl: float = 0.0
    accepted: float = 0.0
    agreed: float = 0.0
    reached: float = 0.0
    count: int = 0


class _HeadLoss(torch.autograd.Function):
    """Computes gradients in the forward pass, chunk by chunk, so that logits never outlive their chunk."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, head: Tensor, targets: Targets, tv: float, sums: Sums) -> Tensor:
        count = states.shape[0]
        dtype = targets.rows.dtype
        rows = head.detach().to(dtype)
        grad_states = torch.empty_like(states)
        grad_head = torch.zeros_like(head) if ctx.needs_input_grad[1] else None
        before = sums.kl, sums.accepted
        for at in range(0, count, _CHUNK):
            part = slice(at, at + _CHUNK)
            fed = states[part].to(dtype)
            p = (targets.states[part].to(dtype) @ targets.rows.T).float().sub_(targets.log_total[part, None]).exp_()
            logits = fed @ rows.T
            gradient = _gradient(p, logits, tv, sums).div_(count).to(dtype)
            grad_states[part] = gradient @ rows
            if grad_head is not None:
                grad_head += gradient.T @ fed
        sums.count += count
        ctx.save_for_backward(grad_states, grad_head)
        kl, accepted = (sums.kl - before[0]) / count, (sums.accepted - before[1]) / count
        return torch.tensor((1.0 - tv) * kl + tv * (1.0 - accepted))

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        grad_states, grad_head = ctx.saved_tensors
        return grad_states * outputs[0], None if grad_head is None else grad_head * outputs[0], None, None, None


def _gradient(p: Tensor, logits: Tensor, tv: float, sums: Sums) -> Tensor:
    """The gradient [n, M] of the summed loss with respect to the logits; p is used up."""
    logits = logits.float()
    largest, likeliest = logits.max(-1, keepdim=True)
    q = (logits - largest).exp_()
    total = q.sum(-1, keepdim=True)
    q /= total
    reached = p.sum(-1, keepdim=True)
    sums.reached += float(reached.sum())
    sums.agreed += float((p.max(-1, keepdim=True).indices == likeliest).sum())
    sums.accepted += float(torch.minimum(p, q).sum())
    sums.kl += float((reached * (largest + total.log())).sum()) - float(torch.dot(p.flatten(), logits.flatten()))
    if tv == 0.0:
        return q.mul_(reached).sub_(p)
    part = q * (q < p)
    toward = q.mul(part.sum(-1, keepdim=True)).sub_(part)
    if tv == 1.0:
        return toward
    return q.mul_(reached).sub_(p).mul_(1.0 - tv).add_(toward, alpha=tv)


def head_loss(states: Tensor, head: Tensor, targets: Targets, tv: float, sums: Sums) -> Tensor:
    """Mean over positions of (1 − tv)·KL + tv·TV.

    Args:
        states: [N, H], what the student's head gets.
        head: the student's rows [M, H]; gets a gradient if it asks for one.
        targets: of the N positions.
        tv: share of total variation, in [0, 1].
        sums: is added to.
    """
    loss: Tensor = _HeadLoss.apply(states, head, targets, tv, sums)  # type: ignore[no-untyped-call]
    return loss
