"""The optimizer of matrices: orthogonal updates, and a problem that it solves in few steps."""

from __future__ import annotations

import pytest
import torch

from draftproof.distill.muon import Muon, orthogonal


@pytest.mark.parametrize("shape", [(12, 30), (30, 12), (16, 16)])
def test_updates_have_the_gradients_directions_and_equal_singular_values(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(shape, dtype=torch.float64)
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    found = u.T @ orthogonal(matrix) @ v.T
    assert torch.allclose(found, found.diagonal().diag(), atol=1e-9)
    assert found.diagonal().min() > 0.3
    assert found.diagonal().max() < 1.3


def test_the_size_of_an_update_is_the_rate_times_a_constant() -> None:
    torch.manual_seed(0)
    for scale in (1e-6, 1e3):
        weights = torch.nn.Parameter(torch.zeros(24, 96))
        weights.grad = scale * torch.randn(24, 96)
        Muon([weights], lr=0.1).step()
        assert float(weights.detach().square().mean().sqrt()) == pytest.approx(0.02, rel=0.3)


def test_directions_of_small_gradient_are_learned_as_fast_as_others() -> None:
    torch.manual_seed(0)
    wanted = torch.randn(8, 8)
    # gradients of the last column are 1,000 times smaller than those of the first
    sizes = torch.logspace(0, -3, 8)
    weights = torch.nn.Parameter(torch.zeros(8, 8))
    optimizer = Muon([weights], lr=0.2)
    for step in range(150):
        optimizer.param_groups[0]["lr"] = 0.2 * (1 - step / 150)
        weights.grad = (weights.detach() - wanted) * sizes
        optimizer.step()
    left = (weights.detach() - wanted).norm(dim=0) / wanted.norm(dim=0)
    # plain gradient descent at the greatest stable rate would have 86 % of the last column left
    assert float(left.max()) < 0.5
