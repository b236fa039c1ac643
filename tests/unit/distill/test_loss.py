"""The loss of a reduced head: its value and its gradient against autograd over plain logits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from draftproof.distill.loss import Sums, Targets, head_loss

COUNT, HIDDEN, HEAD = 700, 16, 30


def _targets(dtype: torch.dtype = torch.float32) -> Targets:
    states = torch.randn(COUNT, HIDDEN).to(dtype)
    rows = (0.5 * torch.randn(HEAD, HIDDEN)).to(dtype)
    # some of the target's probability lies outside the head
    return Targets(states, (states @ rows.T).float().logsumexp(-1) + torch.rand(COUNT), rows)


def _plain(states: Tensor, head: Tensor, targets: Targets, tv: float) -> Tensor:
    p = ((targets.states @ targets.rows.T).float() - targets.log_total[:, None]).exp()
    log_q = (states @ head.T).log_softmax(-1)
    kl = -(p * log_q).sum(-1)
    distance = 1 - torch.minimum(p, log_q.exp()).sum(-1)
    return ((1 - tv) * kl + tv * distance).mean()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.03)])
@pytest.mark.parametrize("tv", [0.0, 0.3, 1.0])
def test_value_and_gradients_are_those_of_plain_logits(tv: float, dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(0)
    targets = _targets(dtype)
    states, head = torch.randn(COUNT, HIDDEN), 0.5 * torch.randn(HEAD, HIDDEN)
    grads = []
    values = []
    for loss in (lambda s, h: head_loss(s, h, targets, tv, Sums()), lambda s, h: _plain(s, h, targets, tv)):
        s, h = states.clone().requires_grad_(), head.clone().requires_grad_()
        value = loss(s, h)
        (3.0 * value).backward()
        assert s.grad is not None
        assert h.grad is not None
        grads.append((s.grad, h.grad))
        values.append(float(value.detach()))
    assert values[0] == pytest.approx(values[1], rel=tolerance / 10)
    for got, expected in zip(*grads, strict=True):
        # in bfloat16 also tokens where p is within rounding of q
        assert float((got - expected).norm() / expected.norm()) < tolerance


def test_sums_are_of_acceptance_agreement_and_reach() -> None:
    torch.manual_seed(0)
    targets = _targets()
    sums = Sums()
    head_loss(targets.states, targets.rows, targets, 0.0, sums)
    p = ((targets.states @ targets.rows.T).float() - targets.log_total[:, None]).exp().sum()
    assert sums.count == COUNT
    assert sums.agreed == COUNT
    assert sums.reached == pytest.approx(float(p), rel=1e-4)
    # the same student renormalised to its head accepts all that the head can reach
    assert sums.accepted == pytest.approx(sums.reached, rel=1e-3)


def test_a_frozen_head_gets_no_gradient() -> None:
    targets = _targets()
    states = torch.randn(COUNT, HIDDEN, requires_grad=True)
    head = torch.randn(HEAD, HIDDEN)
    head_loss(states, head, targets, 0.0, Sums()).backward()
    assert states.grad is not None
    assert head.grad is None
