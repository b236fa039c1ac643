"""Trees of proposals: the law of a round is the target's, with and without replacement; the wrong variants aren't."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from draftproof.verification import token_rule, tree_rule
from draftproof.verification.token_rule import SparseQ
from draftproof.verification.tree_rule import Tree
from tests.exact.enumeration import Law, Prefix, Table, Vector, distance, random_table, target_law, tempered
from tests.exact.trees import (
    Grow,
    Sibling,
    completed,
    context,
    outcomes,
    round_law,
    sent,
    shape,
    trees,
    with_replacement,
    without_replacement,
)

TOLERANCE = 1e-12
CAUGHT = 1e-3

TWICE = pytest.mark.parametrize("sibling", [with_replacement, without_replacement])

CHAIN = shape(0, 1, 2)
THREE = shape(0, 0, 0)
BUSHY = shape(0, 0, 1, 1, 2)
# widths 1, 2, 2, drawn level by level: seven nodes, three deep
SEVEN = shape(0, 1, 1, 2, 2, 3, 3)


def off(p: Table, q: Table, grow: Grow, sibling: Sibling, vocab: int, drawn: Sibling | None = None) -> float:
    """How far one round, and p after it, is from the target."""
    tokens = 4 if grow in (SEVEN, CHAIN) else 3
    law = completed(round_law(p, (), trees((), q, grow, sibling, drawn)), p, (), tokens, vocab)
    return distance(law, target_law(p, tokens, vocab))


@TWICE
@pytest.mark.parametrize(("grow", "vocab"), [(THREE, 4), (BUSHY, 3), (SEVEN, 2), (CHAIN, 3)])
@pytest.mark.parametrize(
    ("p_kind", "q_kind"),
    [
        ("dense", "dense"),
        ("zeros", "dense"),
        ("dense", "zeros"),
        ("even", "odd"),
        ("one_hot", "dense"),
        ("ties", "ties"),
    ],
)
def test_a_round_has_the_targets_law(p_kind: str, q_kind: str, grow: Grow, vocab: int, sibling: Sibling) -> None:
    assert off(random_table(vocab, 1, p_kind), random_table(vocab, 2, q_kind), grow, sibling, vocab) < TOLERANCE


def test_seven_nodes_over_three_tokens_have_the_targets_law() -> None:
    assert off(random_table(3, 3, "dense"), random_table(3, 4, "dense"), SEVEN, without_replacement, 3) < TOLERANCE


@TWICE
def test_rounds_on_end_have_the_targets_law(sibling: Sibling) -> None:
    p, q = random_table(3, 5, "dense"), random_table(3, 6, "dense")
    law: Law = {(): 1.0}
    while any(len(text) < 3 for text in law):
        longer: Law = {}
        for text, probability in law.items():
            further = round_law(p, text, trees(text, q, shape(0, 0, 1), sibling)) if len(text) < 3 else {(): 1.0}
            for committed, share in further.items():
                key = (text + committed)[:3]
                longer[key] = longer.get(key, 0.0) + probability * share
        law = longer
    assert distance(law, target_law(p, 3, 3)) < TOLERANCE


@TWICE
def test_a_draft_that_is_the_target_is_always_accepted(sibling: Sibling) -> None:
    p = random_table(4, 7, "dense")
    for found in trees((), p, shape(0, 0), sibling):
        assert outcomes(p, (), found).ends[0].sum() == 0.0
    assert off(p, p, BUSHY, sibling, 4) < TOLERANCE


def confident(prefix: Prefix, tokens: Prefix, parents: Prefix, qs: tuple[Vector, ...]) -> int | None:
    """Grows below the likeliest node that has room, by the draft's own word, to four nodes; fewer after a 0."""
    if len(tokens) >= (3 if tokens[:1] == (0,) else 4):
        return None
    mass = [1.0]
    for token, parent, q in zip(tokens, parents, qs, strict=True):
        mass.append(mass[parent] * float(q[token]))
    open_ = [n for n in range(len(mass)) if parents.count(n) < 2]
    return max(open_, key=lambda n: mass[n] / (1 + parents.count(n)))


@TWICE
def test_growth_may_follow_tokens_drawn_before_and_their_q(sibling: Sibling) -> None:
    """Even where a sibling is drawn after the children of an earlier one."""
    p, q = random_table(3, 8, "dense"), random_table(3, 9, "dense")
    drawn = list(trees((), q, confident, sibling))
    assert len({tuple(found.tree.parents) for found in drawn}) > 3
    assert any(list(found.tree.parents) != sorted(found.tree.parents) for found in drawn)
    assert off(p, q, confident, sibling, 3) < TOLERANCE


@TWICE
def test_the_overlaps_of_tried_children_have_the_expectation_of_the_count(sibling: Sibling) -> None:
    p, q = random_table(3, 20, "dense"), random_table(3, 22, "dense")
    accepted = compensator = 0.0
    for found in trees((), q, confident, sibling):
        got = outcomes(p, (), found)
        depths = torch.tensor(found.tree.depths(), dtype=torch.float64)
        accepted += found.probability * (got.ends.sum(dim=1) @ depths).item()
        compensator += found.probability * (got.tested @ got.overlaps).item()
    assert accepted == pytest.approx(compensator, abs=1e-12)
    assert accepted > 0.3


def first_accepted(p: Table, q: Table, children: int, sibling: Sibling) -> float:
    found = trees((), q, shape(*[0] * children), sibling)
    return 1.0 - sum(t.probability * outcomes(p, (), t).ends[0].sum().item() for t in found)


def test_more_siblings_are_accepted_more_often_and_most_without_replacement() -> None:
    p, q = random_table(4, 22, "dense"), random_table(4, 23, "dense")
    again, other = ([first_accepted(p, q, k, s) for k in (1, 2, 3)] for s in (with_replacement, without_replacement))
    assert again[0] == pytest.approx(np.minimum(p(()), q(())).sum(), abs=1e-12)
    assert again == sorted(again)
    assert other == sorted(other)
    assert other[1] > again[1] + 0.01


def emits_the_impossible(vocab: int = 3) -> bool:
    """Whether a token of p = 0 can come out where all numbers are 0."""
    impossible = False
    for dead in range(vocab):
        p = np.full(vocab, 1 / (vocab - 1))
        p[dead] = 0.0
        rows, q = torch.from_numpy(np.stack([p] * 4)), np.full(vocab, 1 / vocab)
        for tokens in np.ndindex(vocab, vocab, vocab):
            tree = Tree([int(t) for t in tokens], [0, 0, 1])
            walk = tree_rule.verify(rows, tree, [sent(q)] * 3, [0.0] * 3, [0.0] * 4)
            impossible |= dead in [*(tokens[n - 1] for n in tree.path(walk.node)), walk.next_id]
    return impossible


def test_a_token_the_target_rules_out_is_never_emitted_even_at_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not emits_the_impossible()
    monkeypatch.setattr(token_rule, "accepts", lambda p_x, q_x, u: u * q_x <= p_x)
    assert emits_the_impossible()


def test_where_p_and_q_agree_to_the_last_bit_a_rejection_leaves_p() -> None:
    p = torch.tensor([0.25, 0.75], dtype=torch.float64)
    assert torch.equal(tree_rule.left_over(p, sent(p.numpy())), p)


def test_a_row_without_numbers_counts_only_where_the_walk_gets_to_it() -> None:
    p = torch.tensor([[1.0, 0.0], [float("nan"), 1.0], [0.5, 0.5]], dtype=torch.float64)
    zero = [0.0] * 3
    hit = tree_rule.verify(p, Tree([0, 1], [0, 0]), [sent(np.array([0.5, 0.5]))] * 2, zero, zero)
    missed = tree_rule.verify(p, Tree([1, 0], [0, 0]), [sent(np.array([0.5, 0.5]))] * 2, zero, zero)
    assert (hit.node, hit.finite, missed.node, missed.finite) == (1, False, 2, True)


def test_a_parent_comes_before_its_child() -> None:
    for parents in ([1], [0, 2], [-1]):
        with pytest.raises(ValueError, match="parent of proposal"):
            Tree([0] * len(parents), parents)


# Wrong variants.

P, Q = np.array([0.5, 0.35, 0.15]), np.array([0.2, 0.2, 0.6])


def p_flat(prefix: Prefix) -> Vector:
    return P


def q_flat(prefix: Prefix) -> Vector:
    return Q


def _from_p(p: Tensor, q: SparseQ) -> Tensor:
    return p.clone()


def _absolute(p: Tensor, q: SparseQ) -> Tensor:
    weights = p.clone()
    weights[q.rows, q.ids] = (weights[q.rows, q.ids] - q.masses).abs()
    return weights


def _stale(r: Tensor, q: SparseQ) -> Tensor:
    """Later siblings tried against p as the first was."""
    return r


@TWICE
@pytest.mark.parametrize(
    ("module", "name", "wrong"),
    [(token_rule, "residual", _from_p), (token_rule, "residual", _absolute), (tree_rule, "left_over", _stale)],
)
def test_a_wrong_formula_is_caught(
    module: object, name: str, wrong: Callable[..., Tensor], sibling: Sibling, monkeypatch: pytest.MonkeyPatch
) -> None:
    p, q = random_table(3, 10, "dense"), random_table(3, 11, "dense")
    monkeypatch.setattr(module, name, wrong)
    assert off(p, q, shape(0, 0, 1), sibling, 3) > CAUGHT


def test_siblings_tried_against_p_with_the_right_last_draw_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the tests are stale; what is drawn in the end comes from the right residual."""
    p, q = random_table(3, 10, "dense"), random_table(3, 11, "dense")
    first = {}
    right_start, right_at = tree_rule.start, tree_rule._at

    def starting(row: Tensor) -> Tensor:
        first["r"] = right_start(row)
        return first["r"]

    monkeypatch.setattr(tree_rule, "start", starting)
    monkeypatch.setattr(tree_rule, "_at", lambda r, q, token: right_at(first["r"], q, token))
    assert off(p, q, shape(0, 0), with_replacement, 3) > CAUGHT


def _unnormalised(q: Vector, drawn: Sequence[int]) -> Vector:
    left = q.copy()
    left[list(drawn)] = 0.0
    return left


def test_a_q_not_renormalised_without_replacement_is_caught() -> None:
    assert off(p_flat, q_flat, shape(0, 0), _unnormalised, 3, drawn=without_replacement) > CAUGHT


def test_children_drawn_without_replacement_and_judged_as_with_it_are_caught() -> None:
    assert off(p_flat, q_flat, shape(0, 0), with_replacement, 3, drawn=without_replacement) > CAUGHT
    assert off(p_flat, q_flat, shape(0, 0), without_replacement, 3, drawn=without_replacement) < TOLERANCE


def test_a_q_at_another_temperature_than_drawn_is_caught() -> None:
    def hot(row: Vector, drawn: Sequence[int]) -> Vector | None:
        return without_replacement(tempered(row, 1.5), drawn)

    assert off(p_flat, q_flat, shape(0, 0), without_replacement, 3, drawn=hot) > CAUGHT


def test_keeping_the_likeliest_of_what_was_drawn_is_caught() -> None:
    """Reranking after the draw: unlikely nodes leave the tree, as they do where candidates aren't drawn at all."""
    law: Law = {}
    for found in trees((), q_flat, shape(0, 0), with_replacement):
        kept = [i for i in range(2) if found.qs[i][found.tree.tokens[i]] > 0.3]
        pruned = Tree([found.tree.tokens[i] for i in kept], [0] * len(kept))
        rows = torch.from_numpy(np.stack([p_flat(context(pruned, node)) for node in range(len(kept) + 1)]))
        ends = tree_rule.outcome_law(rows, pruned, [sent(found.qs[i]) for i in kept]).ends
        for node in range(len(kept) + 1):
            for token in range(3):
                text = (*context(pruned, node), token)
                law[text] = law.get(text, 0.0) + found.probability * ends[node, token].item()
    assert distance(completed(law, p_flat, (), 2, 3), target_law(p_flat, 2, 3)) > CAUGHT
