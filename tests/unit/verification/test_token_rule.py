"""The draw half of the token rule: thresholds, boundaries, and its agreement with the probabilities half."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from draftproof.sampling.inverse_cdf import inverse_cdf
from draftproof.verification import token_rule
from draftproof.verification.token_rule import (
    SparseQ,
    Uniforms,
    accept_probability,
    accepted_lengths,
    accepts,
    expected_acceptance,
    outcome_law,
    residual,
    verify,
)

LAST_U = 1.0 - 2.0**-53
"""The largest uniform the generator gives."""


def d(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def sparse(q: Tensor, lengths: Tensor) -> SparseQ:
    """[B, G, V] as coordinates over the rows of p."""
    gamma = q.shape[1]
    keep = (torch.arange(gamma) < lengths[:, None])[..., None] & (q > 0)
    b, i, ids = keep.nonzero(as_tuple=True)
    return SparseQ(b * (gamma + 1) + i, ids, q[keep].double())


# Thresholds.


@pytest.mark.parametrize(("p_x", "q_x"), [(0.25, 0.5), (0.375, 0.5), (0.1, 0.25), (1e-300, 1.0)])
def test_acceptance_turns_over_at_p_over_q(p_x: float, q_x: float) -> None:
    """q is a power of two, so that neither p / q nor u * q rounds."""
    threshold = p_x / q_x
    below, above = math.nextafter(threshold, 0.0), math.nextafter(threshold, 1.0)
    assert accepts(d(p_x), d(q_x), d(below)).item()
    assert not accepts(d(p_x), d(q_x), d(threshold)).item()
    assert not accepts(d(p_x), d(q_x), d(above)).item()


@given(st.floats(1e-12, 1.0), st.floats(1e-12, 1.0))
def test_acceptance_is_within_two_steps_of_its_probability(p_x: float, q_x: float) -> None:
    probability = accept_probability(d(p_x), d(q_x)).item()
    below, above = probability, probability
    for _ in range(2):
        below, above = math.nextafter(below, 0.0), math.nextafter(above, 2.0)
    assert accepts(d(p_x), d(q_x), d(below)).item()
    if above < 1:
        assert not accepts(d(p_x), d(q_x), d(above)).item()


@pytest.mark.parametrize("u", [0.0, 5e-324, 0.5, LAST_U])
@pytest.mark.parametrize("q_x", [0.0, 5e-324, 0.5, 1.0])
def test_a_token_the_target_excludes_is_never_accepted(u: float, q_x: float) -> None:
    assert not accepts(d(0.0), d(q_x), d(u)).item()
    assert accept_probability(d(0.0), d(q_x)).item() == 0.0


@given(st.floats(0.0, 1.0, exclude_max=True), st.floats(1e-300, 1.0), st.floats(1.0, 1e3))
def test_a_token_at_least_as_likely_under_the_target_is_always_accepted(u: float, q_x: float, factor: float) -> None:
    assert accepts(d(q_x * factor), d(q_x), d(u)).item()


def test_not_a_number_is_never_accepted() -> None:
    nan = float("nan")
    assert not accepts(d(nan, 0.5, 0.5), d(0.5, nan, 0.5), d(0.0, 0.0, nan)).any()


def test_only_leading_acceptances_within_the_length_count() -> None:
    p_x = torch.tensor([[0.9, 0.0, 0.9], [0.9, 0.9, 0.9], [0.9, 0.9, 0.9], [0.0, 0.9, 0.9]])
    half = torch.full((4, 3), 0.5)
    assert accepted_lengths(p_x, half, half, torch.tensor([3, 3, 2, 0])).tolist() == [1, 3, 2, 0]


# The token after the accepted ones.


@pytest.mark.parametrize(
    ("u", "token"),
    [
        (0.0, 1),
        (math.nextafter(0.25, 0.0), 1),
        (0.25, 3),
        (math.nextafter(0.75, 0.0), 3),
        (0.75, 4),
        (LAST_U, 4),
    ],
)
def test_the_next_token_turns_over_at_the_cumulative_masses(u: float, token: int) -> None:
    p = d(0.0, 0.25, 0.0, 0.5, 0.25, 0.0)[None, None]
    accepted, chosen = verify(
        p, p[:, :0], torch.zeros((1, 0), dtype=torch.int64), torch.tensor([0]), Uniforms(torch.zeros((1, 0)), d(u))
    )
    assert (accepted.item(), chosen.item()) == (0, token)


@pytest.mark.parametrize(("u", "token"), [(0.0, 0), (math.nextafter(0.5, 0.0), 0), (0.5, 3), (LAST_U, 3)])
def test_the_residual_is_scaled_by_its_own_total(u: float, token: int) -> None:
    """p - q = (1/8, -1/4, 0, 1/8): half and half, though Z is only 1/4."""
    p, q = d(0.375, 0.25, 0.25, 0.125), d(0.25, 0.5, 0.25, 0.0)
    accepted, chosen = verify(
        torch.stack([p, p])[None], q[None, None], torch.tensor([[1]]), torch.tensor([1]), Uniforms(d(0.75)[None], d(u))
    )
    assert (accepted.item(), chosen.item()) == (0, token)


def test_where_z_vanishes_the_residual_is_p() -> None:
    p = torch.rand((3, 7), dtype=torch.float64).softmax(dim=1)
    assert torch.equal(residual(p, p), p)
    rows, ids = (p > 0).nonzero(as_tuple=True)
    assert torch.equal(residual(p, SparseQ(rows, ids, p[rows, ids])), p)


def test_a_residual_too_small_to_sum_still_draws_from_its_support() -> None:
    p = d(0.5, 0.5, 5e-324)
    weights = residual(p[None], d(0.5, 0.5, 0.0)[None])
    assert weights.tolist() == [[0.0, 0.0, 5e-324]]
    assert inverse_cdf(weights.expand(3, -1), d(0.0, 0.5, LAST_U)).tolist() == [2, 2, 2]


def test_expected_acceptance_is_one_minus_z() -> None:
    p, q = d(0.6, 0.3, 0.1)[None], d(0.4, 0.5, 0.1)[None]
    assert expected_acceptance(p, q).item() == pytest.approx(1 - residual(p, q).sum().item(), abs=1e-15)
    rows, ids = (q > 0).nonzero(as_tuple=True)
    assert expected_acceptance(p, SparseQ(rows, ids, q[rows, ids])).item() == expected_acceptance(p, q).item()


# The two halves agree: on dyadic tables with every uniform of a grid, frequencies are the probabilities, to the bit.

GRID = 16


def dyadic_case(seed: int, vocab: int = 4) -> tuple[Tensor, Tensor]:
    """p[3, V], q[2, V] in sixteenths, such that every threshold lies on the grid: q and Z are powers of two."""
    rng = np.random.default_rng(seed)
    q_counts = [[4, 8, 2, 2], [8, 8, 0, 0], [1, 1, 2, 4, 8], [16, 0, 0, 0], [4, 4, 4, 4], [0, 8, 4, 4]]

    def rows() -> tuple[list[int], list[int]]:
        while True:
            q = rng.permutation([c for c in q_counts if len(c) == vocab][rng.integers(5)])
            p = np.bincount(rng.integers(vocab, size=GRID), minlength=vocab)
            if rng.random() < 0.2:
                p = q
            if int(np.maximum(p - q, 0).sum()) in (0, 1, 2, 4, 8, 16):
                return p.tolist(), q.tolist()

    (p0, q0), (p1, q1) = rows(), rows()
    p2 = np.bincount(rng.integers(vocab, size=GRID), minlength=vocab).tolist()
    return torch.tensor([p0, p1, p2]).double() / GRID, torch.tensor([q0, q1]).double() / GRID


def grid_frequencies(p: Tensor, q: Tensor, proposals: list[int]) -> Tensor:
    """Share of each (accepted, next) among all uniforms of the grid: [G+1, V]."""
    u = torch.tensor(list(product(range(GRID), repeat=3))).double() / GRID
    batch = len(u)
    accepted, chosen = verify(
        p.expand(batch, -1, -1),
        q.expand(batch, -1, -1),
        torch.tensor(proposals).expand(batch, -1),
        torch.full((batch,), 2),
        Uniforms(u[:, :2], u[:, 2]),
    )
    counts = torch.zeros((3, p.shape[1]), dtype=torch.float64)
    return counts.index_put_((accepted, chosen), torch.ones(batch, dtype=torch.float64), accumulate=True) / batch


def dyadic_mismatches() -> int:
    """Cases in which the draw and the probabilities differ at all."""
    mismatches = 0
    for seed in range(40):
        p, q = dyadic_case(seed)
        for proposals in product(range(4), repeat=2):
            if q[0, proposals[0]] > 0 and q[1, proposals[1]] > 0:
                law = outcome_law(p[None], q[None], torch.tensor([proposals]), torch.tensor([2]))[0]
                mismatches += not torch.equal(grid_frequencies(p, q, list(proposals)), law)
    return mismatches


def test_draw_frequencies_equal_the_probabilities_to_the_bit() -> None:
    assert dyadic_mismatches() == 0


def test_accepting_at_equality_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_rule, "accepts", lambda p_x, q_x, u: u * q_x <= p_x)
    assert dyadic_mismatches() > 100


def test_an_unscaled_inverse_cdf_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """u compared with the cumulative residual as if it summed to one."""

    def unscaled(weights: Tensor, u: Tensor) -> Tensor:
        return (weights.cumsum(1) > u[:, None]).int().argmax(dim=1)

    monkeypatch.setattr(token_rule, "inverse_cdf", unscaled)
    assert dyadic_mismatches() > 100


# Against an oracle that goes row by row.


def oracle(
    p: list[list[float]], q: list[list[float]], proposals: list[int], accept_u: list[float], next_u: float
) -> tuple[int, int]:
    accepted = 0
    for i, token in enumerate(proposals):
        if not accept_u[i] * q[i][token] < p[i][token]:
            break
        accepted += 1
    weights = list(p[accepted])
    if accepted < len(proposals):
        left = [max(a - b, 0.0) for a, b in zip(p[accepted], q[accepted], strict=True)]
        weights = left if any(left) else weights
    total = 0.0
    for weight in weights:
        total += weight
    threshold = min(next_u * total, math.nextafter(total, 0.0))
    running = 0.0
    for token, weight in enumerate(weights):
        running += weight
        if running > threshold and weight > 0:
            return accepted, token
    raise AssertionError("nothing drawn")


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, Tensor, Uniforms]:
    batch, gamma, vocab = draw(st.integers(1, 5)), draw(st.integers(0, 4)), draw(st.integers(1, 6))
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))

    def rows(count: int) -> Tensor:
        x = rng.gamma(0.5, size=(batch, count, vocab)) + 1e-6
        x[rng.random(x.shape) < draw(st.sampled_from([0.0, 0.5]))] = 0.0
        x[..., 0] += 1e-3 * (x.sum(-1) == 0)
        return torch.from_numpy(x / x.sum(-1, keepdims=True)).to(dtype)

    p, q = rows(gamma + 1), rows(gamma)
    if draw(st.booleans()):
        q = p[:, :gamma].clone()
    proposals = torch.from_numpy(rng.integers(vocab, size=(batch, gamma)))
    lengths = torch.from_numpy(rng.integers(gamma + 1, size=batch))
    special = np.array([0.0, LAST_U, 0.5])
    accept, following = rng.random((batch, gamma)), rng.random(batch)
    accept[rng.random(accept.shape) < 0.2] = special[rng.integers(3)]
    following[rng.random(batch) < 0.3] = special[rng.integers(3)]
    return p, q, proposals, lengths, Uniforms(torch.from_numpy(accept), torch.from_numpy(following))


@given(batches())
@settings(max_examples=300)
def test_verify_equals_the_row_by_row_oracle(case: tuple[Tensor, Tensor, Tensor, Tensor, Uniforms]) -> None:
    p, q, proposals, lengths, u = case
    accepted, chosen = verify(p, q, proposals, lengths, u)
    for b, length in enumerate(lengths.tolist()):
        expected = oracle(
            p[b].tolist(),
            q[b, :length].tolist(),
            proposals[b, :length].tolist(),
            u.accept[b].tolist(),
            u.next[b].item(),
        )
        assert (accepted[b].item(), chosen[b].item()) == expected
        assert p[b, accepted[b], chosen[b]] > 0
    by_sparse = verify(p, sparse(q, lengths), proposals, lengths, u)
    assert torch.equal(by_sparse[0], accepted)
    assert torch.equal(by_sparse[1], chosen)


@given(batches())
@settings(max_examples=100)
def test_outcomes_sum_to_one_and_are_the_same_from_sparse(
    case: tuple[Tensor, Tensor, Tensor, Tensor, Uniforms],
) -> None:
    p, q, proposals, lengths, u = case
    law = outcome_law(p, q, proposals, lengths)
    assert torch.allclose(law.sum(dim=(1, 2)), torch.ones(len(p), dtype=torch.float64), atol=1e-12)
    assert torch.equal(outcome_law(p, sparse(q, lengths), proposals, lengths), law)
    accepted, chosen = verify(p, q, proposals, lengths, u)
    assert (law[torch.arange(len(p)), accepted, chosen] > 0).all()


def test_padding_past_a_rounds_length_is_ignored() -> None:
    p = torch.rand((2, 4, 5), dtype=torch.float64).softmax(dim=-1)
    q = torch.rand((2, 3, 5), dtype=torch.float64).softmax(dim=-1)
    lengths, proposals = torch.tensor([1, 2]), torch.tensor([[1, 0, 0], [2, 3, 0]])
    u = Uniforms(torch.rand((2, 3), dtype=torch.float64), torch.rand(2, dtype=torch.float64))
    expected = verify(p, q, proposals, lengths, u)
    for b, length in enumerate(lengths.tolist()):
        p[b, length + 1 :] = float("nan")
        q[b, length:] = float("nan")
    accepted, chosen = verify(p, q, proposals, lengths, u)
    assert torch.equal(accepted, expected[0])
    assert torch.equal(chosen, expected[1])


@pytest.mark.gpu
def test_cuda_gives_the_cpus_verdicts() -> None:
    """Dyadic tables: no rounding, so a parallel scan can't differ either."""
    for seed in range(20):
        p, q = dyadic_case(seed)
        u = torch.rand((64, 3), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        lengths = torch.arange(64) % 3
        proposals = q.argmax(dim=1).expand(64, -1)
        case = (p.expand(64, -1, -1), q.expand(64, -1, -1), proposals, lengths)
        expected = verify(*case, Uniforms(u[:, :2], u[:, 2]))
        on_gpu = verify(*(x.cuda() for x in case), Uniforms(u[:, :2].cuda(), u[:, 2].cuda()))
        assert torch.equal(on_gpu[0].cpu(), expected[0])
        assert torch.equal(on_gpu[1].cpu(), expected[1])
