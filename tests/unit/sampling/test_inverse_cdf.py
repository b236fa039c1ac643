"""The one inverse CDF: thresholds on both sides of each boundary, and never a token of zero weight."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.sampling.inverse_cdf import inverse_cdf

Draw = Callable[[list[float], float], int]
LAST_U = 1 - 2.0**-53


def _ours(weights: list[float], u: float) -> int:
    return int(inverse_cdf(torch.tensor([weights], dtype=torch.float64), torch.tensor([u], dtype=torch.float64))[0])


def _not_strict(weights: list[float], u: float) -> int:
    cumulative = np.cumsum(weights)
    return int(np.searchsorted(cumulative, u * cumulative[-1], side="left"))


def _unscaled(weights: list[float], u: float) -> int:
    return int(np.searchsorted(np.cumsum(weights), u, side="right"))


def _unclamped(weights: list[float], u: float) -> int:
    cumulative = np.cumsum(weights)
    return int(np.searchsorted(cumulative, u * cumulative[-1], side="right"))


def _clamped_to_the_last_token(weights: list[float], u: float) -> int:
    return min(_unclamped(weights, u), len(weights) - 1)


def _boundaries_hold(draw: Draw) -> bool:
    """Weights with exact cumulative sums k/8: token i owns [c[i-1], c[i])."""
    weights = [0.0, 0.125, 0.0, 0.5, 0.25, 0.125, 0.0]
    expected = [(0.0, 1), (0.125, 3), (0.625, 4), (0.875, 5), (1.0, None)]
    for (low, token), (high, _) in itertools.pairwise(expected):
        inside = (low, math.nextafter(low, 1), (low + high) / 2, math.nextafter(high, 0))
        for scale in (1.0, 0.25, 1024.0):
            for u in inside:
                try:
                    drawn = draw([w * scale for w in weights], u)
                except IndexError:
                    return False
                if drawn != token:
                    return False
    return True


def _never_zero(draw: Draw) -> bool:
    """Zeros at both ends and inside, subnormal totals, at the ends of u."""
    tiny = 5e-324
    rows = [
        [0.0, tiny, 0.0],
        [0.0, tiny, tiny, 0.0, 0.0],
        [0.0, 0.0, 1.0, 0.0],
        [0.0, 0.3, 0.0, 0.1, 0.0],
        [0.0, 1e-320, 1e300, 0.0, 1e-320, 0.0],
        [1.0, 1e-17, 0.0],
    ]
    for row in rows:
        for u in (0.0, tiny, 0.5, LAST_U):
            drawn = draw(row, u)
            if not 0 <= drawn < len(row) or row[drawn] == 0:
                return False
    return True


def test_a_token_owns_its_interval_up_to_but_without_its_end() -> None:
    assert _boundaries_hold(_ours)
    assert not _boundaries_hold(_not_strict)
    assert not _boundaries_hold(_unscaled)


def test_zero_weight_is_never_drawn() -> None:
    assert _never_zero(_ours)
    assert not _never_zero(_not_strict)
    assert not _never_zero(_unclamped)
    assert not _never_zero(_clamped_to_the_last_token)


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.one_of(st.just(0.0), st.floats(0, 2.0**100, width=32), st.floats(0, 1e-40)), min_size=1, max_size=12),
    st.one_of(st.sampled_from([0.0, LAST_U]), st.floats(0, 1, exclude_max=True)),
)
def test_draws_what_a_plain_loop_draws(weights: list[float], u: float) -> None:
    total = 0.0
    for weight in weights:
        total += weight
    if total == 0:
        assert _ours(weights, u) == -1
        return
    running, expected = 0.0, -1
    for i, weight in enumerate(weights):
        running += weight
        if weight > 0 and running > min(u * total, math.nextafter(total, 0)):
            expected = i
            break
    assert _ours(weights, u) == expected


def test_rows_are_independent_and_any_float_dtype_will_do() -> None:
    generator = torch.Generator().manual_seed(1)
    weights = torch.rand(32, 3000, generator=generator)
    u = torch.rand(32, generator=generator, dtype=torch.float64)
    batch = inverse_cdf(weights, u)
    assert batch.dtype == torch.int64
    assert batch.tolist() == [int(inverse_cdf(weights[i : i + 1], u[i : i + 1])[0]) for i in range(32)]
    for dtype in (torch.bfloat16, torch.float16):
        low = weights.to(dtype)
        assert torch.equal(inverse_cdf(low, u), inverse_cdf(low.double(), u))


def test_float32_weights_are_cumulated_in_float64() -> None:
    # In float32 the running sum would stick at 2**24, and no token after the first would be drawn.
    weights = torch.tensor([[2.0**24, *[1.0] * 8]])
    u = torch.tensor([(2**24 + 6.5) / (2**24 + 8)], dtype=torch.float64)
    assert int(inverse_cdf(weights, u)[0]) == 7


@pytest.mark.gpu
def test_cuda_agrees_and_never_draws_zero_weight() -> None:
    generator = torch.Generator().manual_seed(2)
    weights = torch.rand(64, 50_000, generator=generator) ** 8
    weights[torch.rand(weights.shape, generator=generator) < 0.9] = 0
    for u in (
        torch.rand(64, generator=generator, dtype=torch.float64),
        torch.zeros(64).double(),
        torch.full((64,), LAST_U).double(),
    ):
        drawn = inverse_cdf(weights.cuda(), u.cuda()).cpu()
        assert (weights.gather(1, drawn[:, None]) > 0).all()
        assert (drawn == inverse_cdf(weights, u)).float().mean() > 0.99
