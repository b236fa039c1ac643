"""The law of the first m tokens under each lossless rule equals the target's, every path enumerated in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
import torch
from torch import Tensor

from draftproof.verification import block_rule, token_rule
from tests.exact.enumeration import (
    Block,
    Drafter,
    Prefix,
    Vector,
    distance,
    drawing,
    fixed,
    honest,
    output_law,
    random_table,
    target_law,
    tempered,
)

TOLERANCE = 1e-12
# A variant counts as caught when some probability is off by far more than any rounding.
CAUGHT = 1e-3

BOTH = pytest.mark.parametrize("rule", [token_rule, block_rule])

KINDS = [
    ("dense", "dense"),
    ("dense", "zeros"),
    ("zeros", "dense"),
    ("zeros", "zeros"),
    ("even", "odd"),
    ("one_hot", "dense"),
    ("dense", "one_hot"),
    ("one_hot", "one_hot"),
    ("ties", "ties"),
]


@BOTH
@pytest.mark.parametrize(("vocab", "gamma"), [(2, 1), (2, 3), (3, 2), (4, 1), (5, 3)])
@pytest.mark.parametrize(("p_kind", "q_kind"), KINDS)
def test_every_prefix_of_gamma_plus_one_tokens_has_the_targets_law(
    p_kind: str, q_kind: str, vocab: int, gamma: int, rule: ModuleType
) -> None:
    p, q = random_table(vocab, 1, p_kind), random_table(vocab, 2, q_kind)
    for tokens in range(1, gamma + 2):
        law = output_law(p, honest(q, fixed(gamma)), tokens, vocab, rule)
        assert distance(law, target_law(p, tokens, vocab)) < TOLERANCE


@BOTH
@pytest.mark.parametrize("seed", range(3))
def test_the_largest_case_has_the_targets_law_over_several_rounds(seed: int, rule: ModuleType) -> None:
    p, q = random_table(5, seed, "dense"), random_table(5, seed + 100, "zeros")
    assert distance(output_law(p, honest(q, fixed(3)), 4, 5, rule), target_law(p, 4, 5)) < TOLERANCE


@BOTH
@pytest.mark.parametrize("gamma", [0, 1, 2, 3])
def test_six_tokens_over_many_rounds_have_the_targets_law(gamma: int, rule: ModuleType) -> None:
    p, q = random_table(3, 5, "dense"), random_table(3, 6, "dense")
    assert distance(output_law(p, honest(q, fixed(gamma)), 6, 3, rule), target_law(p, 6, 3)) < TOLERANCE


@BOTH
def test_a_draft_that_is_the_target_is_always_accepted(rule: ModuleType) -> None:
    p = random_table(4, 7, "dense")
    block = torch.from_numpy(p(()))
    law = rule.outcome_law(block.expand(1, 2, 4), block.expand(1, 1, 4), torch.tensor([[2]]), torch.tensor([1]))
    assert law[0, 0].sum() == 0.0
    assert distance(output_law(p, honest(p, fixed(2)), 4, 4, rule), target_law(p, 4, 4)) < TOLERANCE


def _adaptive(prefix: Prefix, tokens: Prefix, qs: tuple[Vector, ...]) -> bool:
    """Legal: looks at the committed prefix, the drawn proposals and their q."""
    if len(tokens) >= 3:
        return False
    if prefix and prefix[-1] == 0 and not tokens:
        return False
    return not tokens or (qs[-1][tokens[-1]] > 0.4) != (sum(tokens) % 2 == 0)


@BOTH
def test_gamma_may_follow_prefix_proposals_and_their_q(rule: ModuleType) -> None:
    p, q = random_table(3, 8, "dense"), random_table(3, 9, "dense")
    blocks = list(honest(q, _adaptive)((1,)))
    assert len({len(block.tokens) for block in blocks}) > 1
    assert distance(output_law(p, honest(q, _adaptive), 5, 3, rule), target_law(p, 5, 3)) < TOLERANCE


# Wrong variants. Each replaces one function of the library and must be seen by the same enumeration.


def _from_p(p: Tensor, q: Tensor) -> Tensor:
    return p.double()


def _absolute(p: Tensor, q: Tensor) -> Tensor:
    return (p - q).abs()


def _always(p_x: Tensor, q_x: Tensor) -> Tensor:
    return torch.ones_like(p_x)


def _swapped(p_x: Tensor, q_x: Tensor) -> Tensor:
    return torch.where(p_x > q_x, q_x / p_x, 1.0)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("residual", _from_p),
        ("residual", _absolute),
        ("accept_probability", _always),
        ("accept_probability", _swapped),
    ],
)
def test_a_wrong_formula_is_caught(name: str, wrong: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    p, q = random_table(3, 10, "dense"), random_table(3, 11, "dense")
    monkeypatch.setattr(token_rule, name, wrong)
    assert distance(output_law(p, honest(q, fixed(2)), 3, 3), target_law(p, 3, 3)) > CAUGHT


def test_an_unnormalised_residual_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """(p - q)+ used as if it summed to one: what is missing goes to the last token, as with a CDF that isn't scaled."""

    def unnormalised(p: Tensor, q: Tensor) -> Tensor:
        weights = (p.double() - q).clamp(min=0.0)
        weights[:, -1] += 1.0 - weights.sum(dim=-1)
        return weights

    p, q = random_table(3, 10, "dense"), random_table(3, 11, "dense")
    monkeypatch.setattr(token_rule, "residual", unnormalised)
    assert distance(output_law(p, honest(q, fixed(2)), 3, 3), target_law(p, 3, 3)) > CAUGHT


@BOTH
def test_q_at_another_temperature_than_drawn_is_caught(rule: ModuleType) -> None:
    p, q = random_table(3, 12, "dense"), random_table(3, 13, "dense")
    hot = drawing(q, lambda prefix: tempered(q(prefix), 1.5), fixed(2))
    assert distance(output_law(p, hot, 3, 3, rule), target_law(p, 3, 3)) > CAUGHT


@BOTH
def test_dropping_unlikely_drafts_is_caught(rule: ModuleType) -> None:
    p, q = random_table(3, 14, "dense"), random_table(3, 15, "dense")

    def dropping(prefix: Prefix) -> Iterator[Block]:
        for block in honest(q, fixed(2))(prefix):
            unlikely = [i for i, token in enumerate(block.tokens) if block.qs[i][token] < 0.3]
            end = unlikely[0] if unlikely else len(block.tokens)
            yield Block(block.probability, block.tokens[:end], block.qs[:end])

    assert distance(output_law(p, dropping, 3, 3, rule), target_law(p, 3, 3)) > CAUGHT


@BOTH
def test_stopping_after_an_unlikely_draft_is_legal(rule: ModuleType) -> None:
    """The near miss of the test above: the unlikely proposal stays, only the next one isn't drawn."""
    p, q = random_table(3, 14, "dense"), random_table(3, 15, "dense")

    def confident(prefix: Prefix, tokens: Prefix, qs: tuple[Vector, ...]) -> bool:
        return len(tokens) < 2 and (not tokens or qs[-1][tokens[-1]] >= 0.3)

    assert distance(output_law(p, honest(q, confident), 3, 3, rule), target_law(p, 3, 3)) < TOLERANCE


@BOTH
def test_ending_a_block_before_a_malformed_q_is_exact(rule: ModuleType) -> None:
    """Which positions are malformed depends on the context, never on the token drawn there."""
    p, q = random_table(3, 16, "dense"), random_table(3, 17, "dense")
    drafter: Drafter = honest(q, lambda prefix, tokens, qs: len(tokens) < 3 and sum(prefix + tokens) % 4 != 2)
    assert any(len(block.tokens) == 0 for block in drafter((2,)))
    assert distance(output_law(p, drafter, 5, 3, rule), target_law(p, 5, 3)) < TOLERANCE


@BOTH
def test_refusing_the_whole_round_for_a_late_malformed_q_is_caught(rule: ModuleType) -> None:
    """Throwing away good draws because of what was drawn: the error that ending the block avoids."""
    p, q = random_table(3, 16, "dense"), random_table(3, 17, "dense")

    def refusing(prefix: Prefix) -> Iterator[Block]:
        for block in honest(q, fixed(2))(prefix):
            malformed = block.tokens[0] == 2
            yield Block(block.probability, () if malformed else block.tokens, () if malformed else block.qs)

    assert distance(output_law(p, refusing, 3, 3, rule), target_law(p, 3, 3)) > CAUGHT
