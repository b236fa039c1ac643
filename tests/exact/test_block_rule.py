"""What block verification promises beyond the law, and its wrong variants."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from draftproof.verification import block_rule, token_rule
from tests.exact.enumeration import (
    Drafter,
    Prefix,
    Table,
    distance,
    fixed,
    honest,
    output_law,
    random_table,
    round_law,
    target_law,
)

CAUGHT = 1e-3


def accepted_length(p: Table, drafter: Drafter, vocab: int, rule: object) -> float:
    """Expected accepted proposals of the first round, by the rule's own outcome law."""
    return sum((len(committed) - 1) * share for committed, share in round_law(p, drafter, (), vocab, rule))  # type: ignore[arg-type]


def by_hand(p: Table, q: Table, gamma: int, vocab: int, prefix: Prefix = (), rho: float = 1.0) -> float:
    """sum over prefixes of Q(prefix) * rho(prefix), in plain Python."""
    if len(prefix) == gamma:
        return 0.0
    p_row, q_row = p(prefix), q(prefix)
    total = 0.0
    for x in range(vocab):
        if q_row[x] > 0:
            longer = min(1.0, rho * p_row[x] / q_row[x])
            total += q_row[x] * (longer + by_hand(p, q, gamma, vocab, (*prefix, x), longer))
    return total


def random_pairs(count: int, vocab: int, gamma: int, seed: int) -> tuple[Tensor, Tensor]:
    """p [count, G+1, C, V] and q [count, G, C, V] after every context of i tokens, C = V**G; many masses are 0."""
    rng = np.random.default_rng(seed)
    shape = (count, gamma + 1, vocab**gamma, vocab)
    p, q = rng.gamma(0.5, size=shape), rng.gamma(0.5, size=shape)[:, :gamma]
    for rows in (p, q):
        rows[rng.random(rows.shape) < 0.2] = 0.0
        rows[rows.sum(-1) == 0] = 1.0
        rows /= rows.sum(-1, keepdims=True)
    return torch.from_numpy(p), torch.from_numpy(q)


@pytest.mark.parametrize(("vocab", "gamma", "count"), [(2, 1, 1000), (2, 3, 3000), (3, 2, 3000), (4, 2, 3000)])
def test_no_fewer_proposals_stay_than_under_the_token_rule_and_as_many_as_computed(
    vocab: int, gamma: int, count: int
) -> None:
    """10,000 random pairs, all blocks of each enumerated; the compensator has the same expectation."""
    p, q = random_pairs(count, vocab, gamma, seed=vocab + gamma)
    lengths = torch.full((count,), gamma)
    sizes = torch.arange(gamma + 1, dtype=torch.float64)
    token, block, compensator, reference = (torch.zeros(count, dtype=torch.float64) for _ in range(4))
    for index in range(vocab**gamma):
        proposals = [index // vocab**i % vocab for i in range(gamma)]
        context = [sum(x * vocab**j for j, x in enumerate(proposals[:i])) for i in range(gamma + 1)]
        p_rows = torch.stack([p[:, i, context[i]] for i in range(gamma + 1)], dim=1)
        q_rows = torch.stack([q[:, i, context[i]] for i in range(gamma)], dim=1)
        tokens = torch.tensor(proposals).expand(count, gamma)
        drawn = q_rows.gather(2, tokens[..., None])[..., 0]
        weight = drawn.prod(dim=1)
        laws = [rule.outcome_law(p_rows, q_rows, tokens, lengths) for rule in (token_rule, block_rule)]
        for total, law in zip((token, block), laws, strict=True):
            total += weight * (law.sum(dim=2) @ sizes)
        compensator += weight * block_rule.expected_acceptance(p_rows, q_rows, tokens, lengths).sum(dim=1)
        rho = torch.ones(count, dtype=torch.float64)
        for i, x in enumerate(proposals):
            rho = torch.minimum(rho * p_rows[:, i, x] / drawn[:, i], torch.ones(()))
            rho = torch.where(drawn[:, i] > 0, rho, 0.0)
            reference += weight * rho
    assert torch.all(block >= token - 1e-12)
    assert (block > token + 1e-3).double().mean() > (0.5 if gamma > 1 else -1)
    assert torch.allclose(block, reference, atol=1e-12)
    assert torch.allclose(block, compensator, atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_the_expected_length_is_the_one_computed_by_hand(seed: int) -> None:
    p, q = random_table(3, seed, "dense"), random_table(3, seed + 50, "zeros")
    assert accepted_length(p, honest(q, fixed(3)), 3, block_rule) == pytest.approx(by_hand(p, q, 3, 3), abs=1e-12)


# Wrong variants.


def _of_the_token_rule(p: Tensor, q: Tensor, ratios: Tensor) -> Tensor:
    return token_rule.residual(p, q)


def _from_p(p: Tensor, q: Tensor, ratios: Tensor) -> Tensor:
    return p


def _uncapped(p_x: Tensor, q_x: Tensor, lengths: Tensor) -> Tensor:
    ones = torch.ones((len(p_x), 1), dtype=torch.float64)
    inside = torch.arange(p_x.shape[1]) < lengths[:, None]
    return torch.cat([ones, torch.where(inside, (p_x / q_x).cumprod(dim=1), 0.0)], dim=1)


def _tests_of_the_ratio_alone(ratios: Tensor, overlaps: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """u < rho for every prefix, as if each were the whole block."""
    inside = torch.arange(overlaps.shape[1]) < lengths[:, None]
    return torch.where(inside, ratios[:, 1:], 0.0), torch.ones_like(overlaps)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("residual", _of_the_token_rule),
        ("residual", _from_p),
        ("joint_ratios", _uncapped),
        ("tests", _tests_of_the_ratio_alone),
    ],
)
def test_a_wrong_formula_is_caught(name: str, wrong: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
    p, q = random_table(3, 28, "dense"), random_table(3, 29, "dense")
    monkeypatch.setattr(block_rule, name, wrong)
    assert distance(output_law(p, honest(q, fixed(2)), 3, 3, block_rule), target_law(p, 3, 3)) > CAUGHT


def test_the_longest_prefix_that_passes_stays_even_behind_one_that_fails() -> None:
    ratios = torch.tensor([[1.0, 0.5, 0.9]], dtype=torch.float64)
    overlaps = torch.tensor([[0.6, 0.4]], dtype=torch.float64)
    u, lengths = torch.tensor([[0.99, 0.8]]), torch.tensor([2])
    assert block_rule.accepted_lengths(ratios, overlaps, u, lengths).item() == 2
    assert block_rule.accepted_lengths(ratios, overlaps, torch.tensor([[0.0, 0.95]]), lengths).item() == 1


def test_a_token_the_target_rules_out_never_stays_even_at_zero() -> None:
    """Nor does anything behind it: strictly less."""
    p = torch.tensor([[[0.0, 1.0], [0.5, 0.5], [0.5, 0.5]]], dtype=torch.float64)
    q = torch.full((1, 2, 2), 0.5, dtype=torch.float64)
    zero = token_rule.Uniforms(torch.zeros((1, 2), dtype=torch.float64), torch.zeros(1, dtype=torch.float64))
    accepted, token = block_rule.verify(p, q, torch.tensor([[0, 1]]), torch.tensor([2]), zero)
    assert (accepted.item(), token.item()) == (0, 1)
