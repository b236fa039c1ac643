"""The law over a tree of prefixes, against enumeration."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from draftproof.certify.law import REST, ContinuationLaw, PrefixTree

VOCAB = 5


def p_after(prefix: tuple[int, ...]) -> np.ndarray:
    """A distribution for every prefix; token 4 is impossible."""
    row = np.random.default_rng([*prefix, 17]).dirichlet(np.ones(VOCAB - 1) * 0.7)
    return np.append(row, 0.0)


def grown(length: int, prefixes: int, least_mass: float = 0.0) -> PrefixTree:
    tree = PrefixTree(length, prefixes, least_mass)
    while (prefix := tree.wanted()) is not None:
        tree.add(p_after(prefix))
    return tree


def joint(tokens: tuple[int, ...]) -> float:
    return float(np.prod([p_after(tokens[:i])[token] for i, token in enumerate(tokens)]))


@pytest.mark.parametrize(("prefixes", "cells"), [(1, 2), (1, 99), (4, 3), (7, 11), (85, 999)])
def test_masses_are_those_of_the_joint_law(prefixes: int, cells: int) -> None:
    law = ContinuationLaw(grown(3, prefixes), cells)
    found = dict.fromkeys(law.masses, 0.0)
    for tokens in itertools.product(range(VOCAB - 1), repeat=3):
        found[law.outcome(tokens)] += joint(tokens)
    assert found == pytest.approx(law.masses, abs=1e-12)
    assert sum(outcome[-1] != REST for outcome in law.masses) <= cells


def test_the_likeliest_missing_prefix_is_asked_for_next() -> None:
    tree, asked = PrefixTree(3, 8, 0.0), []
    while (prefix := tree.wanted()) is not None:
        asked.append(prefix)
        tree.add(p_after(prefix))
    masses = [joint(prefix) for prefix in asked]
    everything = [t for n in range(3) for t in itertools.product(range(VOCAB), repeat=n)]
    assert masses == sorted(masses, reverse=True)
    assert set(asked) == set(sorted(everything, key=joint, reverse=True)[:8])


def test_prefixes_that_hardly_anybody_reaches_are_not_asked_for() -> None:
    tree = grown(3, 99, 0.1)
    assert all(tree.mass(prefix) >= 0.1 for prefix in tree.rows)
    assert len(tree.rows) < 20


def test_the_likeliest_outcomes_stand_alone() -> None:
    law = ContinuationLaw(grown(2, 2), 4)
    alone = [mass for outcome, mass in law.masses.items() if outcome[-1] != REST]
    everything = ContinuationLaw(grown(2, 2), 99).masses
    assert alone == pytest.approx(sorted(everything.values(), reverse=True)[:4])


def test_an_impossible_token_is_no_outcome_of_the_law() -> None:
    law = ContinuationLaw(grown(2, 3), 3)
    for tokens in ((4, 0), (9, 0), (next(x for x in range(4) if (x,) in law._tree.rows), 4)):
        assert law.outcome(tokens) not in law.masses


def test_depth_counts_the_tokens_that_are_tested() -> None:
    tree = grown(3, 2)
    (first,) = (prefix[0] for prefix in tree.rows if prefix)
    law = ContinuationLaw(tree, 99)
    other = (first + 1) % 4
    assert law.depth((other, 0, 0)) == 1
    assert law.depth((first, 0, 0)) == 2


@pytest.mark.parametrize("row", [[0.5, 0.4], [1.5, -0.5], [float("nan"), 1.0], [[1.0]]])
def test_what_is_no_distribution_is_refused(row: object) -> None:
    with pytest.raises(ValueError, match="sum to one"):
        PrefixTree(2, 2).add(row)


def test_a_row_of_another_vocabulary_is_refused() -> None:
    tree = PrefixTree(2, 3, 0.0)
    tree.add([0.5, 0.5])
    with pytest.raises(ValueError, match="3 tokens"):
        tree.add([0.5, 0.25, 0.25])


def test_a_continuation_must_be_long_enough() -> None:
    with pytest.raises(ValueError, match="2 tokens"):
        ContinuationLaw(grown(3, 2), 9).outcome((0, 1))


def test_a_large_vocabulary_in_float32_is_renormalised() -> None:
    p = np.random.default_rng(1).dirichlet(np.ones(50_000)).astype(np.float32)
    tree = PrefixTree(1, 1)
    tree.add(p)
    law = ContinuationLaw(tree, 20)
    assert sum(law.masses.values()) == pytest.approx(1, abs=1e-12)
    assert len(law.masses) == 21
