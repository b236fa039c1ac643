"""What lossy rules lose, exactly."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from draftproof.sampling.params import Rule, SamplingParams
from draftproof.verification import token_rule
from tests.exact.enumeration import Law, fixed, honest, output_law, random_table, target_law
from tests.exact.lossy import Lossy

RULES = [
    Lossy(SamplingParams(rule=rule, lenience=lenience))
    for rule, lenience in product((Rule.LENIENT, Rule.TYPICAL), (0.05, 0.3, 0.8))
]
WITH_RULES = pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.params.rule}-{rule.params.lenience}")


def total_variation(a: Law, b: Law) -> float:
    return sum(abs(a.get(key, 0.0) - b.get(key, 0.0)) for key in a.keys() | b.keys()) / 2


@WITH_RULES
@pytest.mark.parametrize(
    ("p_kind", "q_kind"), [("dense", "dense"), ("zeros", "dense"), ("ties", "zeros"), ("even", "odd")]
)
def test_the_loss_at_one_position_is_exactly_what_is_said(rule: Lossy, p_kind: str, q_kind: str) -> None:
    for seed in range(20):
        p, q = random_table(4, seed, p_kind), random_table(4, seed + 99, q_kind)
        rows = torch.from_numpy(np.stack([p(()), q(())]))
        kept = rule.kept(rows[:1], rows[1:])
        said = (kept - rows[:1]).clamp(min=0).sum().item()
        law = output_law(p, honest(q, fixed(1)), 1, 4, rule)  # type: ignore[arg-type]
        assert total_variation(law, target_law(p, 1, 4)) == pytest.approx(said, abs=1e-12)
        assert said <= 1 - rule.params.lenience + 1e-12 or rule.params.rule is Rule.TYPICAL
        assert all(law.get((x,), 0.0) == 0.0 for x in range(4) if rows[0, x] == 0)
        overlap = token_rule.expected_acceptance(rows[:1], rows[1:]).item()
        assert kept.sum().item() >= overlap - 1e-12 or rule.params.rule is Rule.TYPICAL


@WITH_RULES
def test_over_a_text_the_loss_is_at_most_the_expected_sum(rule: Lossy) -> None:
    """Tokens of two rounds and more, weighed by how often each position is reached."""
    for seed in range(3):
        p, q = random_table(3, seed, "dense"), random_table(3, seed + 7, "dense")
        law, truth = output_law(p, honest(q, fixed(1)), 3, 3, rule), target_law(p, 3, 3)  # type: ignore[arg-type]
        worst = 0.0
        for length in range(3):
            for prefix in product(range(3), repeat=length):
                rows = torch.from_numpy(np.stack([p(prefix), q(prefix)]))
                loss = (rule.kept(rows[:1], rows[1:]) - rows[:1]).clamp(min=0).sum().item()
                worst += loss * sum(mass for text, mass in law.items() if text[:length] == prefix)
        assert total_variation(law, truth) <= worst + 1e-12


def test_where_nothing_is_lost_the_law_is_the_targets() -> None:
    p = random_table(4, 3, "dense")
    for rule in RULES[:3]:
        assert total_variation(output_law(p, honest(p, fixed(2)), 3, 4, rule), target_law(p, 3, 4)) < 1e-12  # type: ignore[arg-type]
