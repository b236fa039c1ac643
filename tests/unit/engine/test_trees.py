"""Trees of proposals in a pass: each node sees its own path alone, and a kept path is as good as fed alone."""

from __future__ import annotations

import random

import pytest
import torch

from draftproof.engine.interface import Engine, Row
from draftproof.engine.layout import Group, Span
from draftproof.errors import UnsupportedError
from draftproof.testing.table import TableEngine
from draftproof.verification.tree_rule import Tree
from tests.tiny_gguf import needs_llamacpp

V = 89
PARENTS = (0, 0, 0, 1, 1, 3, 4, 4, 7)
PATHS = [Tree([0] * len(PARENTS), PARENTS).path(node) for node in range(len(PARENTS) + 1)]


def ids(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(V), k=count)


def assert_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)


def paths_of(tree: Tree) -> list[list[int]]:
    return [[tree.tokens[node - 1] for node in tree.path(at)] for at in range(len(tree.tokens) + 1)]


@pytest.mark.parametrize("path", PATHS, ids=str)
def test_nodes_are_computed_along_their_paths_and_a_kept_one_equals_a_cold_recompute(each_kind, path):
    engine = each_kind.engine()
    texts = [ids(20, 1), ids(9, 2), ids(31, 3)]
    tree = Tree(ids(len(PARENTS), 7), PARENTS)
    engine.forward([Row(slot, 0, text[:-2], 0) for slot, text in enumerate(texts)])

    # A chain of as many tokens and a text's end share the pass.
    others = [Row(1, 7, [*texts[1][-2:], *ids(9, 4)], 3), Row(2, 29, texts[2][-2:], 1)]
    row = Row(0, 18, [*texts[0][-2:], *tree.tokens], len(PARENTS) + 1, PARENTS)
    logits = engine.forward([row, *others])
    cold = [each_kind.plain([*texts[0], *tokens])[-1] for tokens in paths_of(tree)]
    assert_close(logits[: len(cold)], torch.stack(cold))
    assert_close(logits[len(cold) : -1], each_kind.plain([*texts[1], *ids(9, 4)])[-3:])
    assert_close(logits[-1:], each_kind.plain(texts[2])[-1:])

    assert engine.length(0) == 20
    engine.keep(0, path)
    kept = [*texts[0], *(tree.tokens[node - 1] for node in path)]
    fresh = each_kind.engine()
    fresh.forward([Row(0, 0, kept, 0)])
    assert engine.token_ids(0) == tuple(kept)
    for mine, theirs in zip(each_kind.cache(engine, 0), each_kind.cache(fresh, 0), strict=True):
        assert_close(mine, theirs)
    assert_close(engine.forward([Row(0, len(kept), [5], 1)]), each_kind.plain([*kept, 5])[-1:])


@pytest.mark.parametrize("kind", ["llama", "mistral-window"])
def test_random_trees_side_by_side(tiny, kind):
    model, choose = tiny(kind), random.Random(3)
    engine = model.engine(max_context=200)
    texts = [ids(5 + 11 * slot, slot) for slot in range(4)]
    for _ in range(4):
        trees = []
        for slot in range(4):
            count = choose.choice([0, 1, 6, 6, 70])
            trees.append(Tree(ids(count, choose.random()), [choose.randint(max(0, i - 4), i) for i in range(count)]))
            assert len(texts[slot]) + count < 200
        rows = [
            Row(slot, max(0, engine.length(slot)), [*text[engine.length(slot) :], *tree.tokens], len(tree.tokens) + 1)
            for slot, (text, tree) in enumerate(zip(texts, trees, strict=True))
        ]
        rows = [
            Row(row.slot, row.start, row.token_ids, row.logits, tree.parents)
            for row, tree in zip(rows, trees, strict=True)
        ]
        logits = engine.forward(rows)
        cold = [
            model.plain([*text, *tokens])[-1]
            for text, tree in zip(texts, trees, strict=True)
            for tokens in paths_of(tree)
        ]
        assert_close(logits, torch.stack(cold))
        for slot, tree in enumerate(trees):
            path = tree.path(choose.randint(0, len(tree.tokens)))
            engine.keep(slot, path)
            texts[slot] += [*(tree.tokens[node - 1] for node in path), choose.randrange(V)]
            assert engine.token_ids(slot) == tuple(texts[slot][:-1])


def test_a_tree_that_nobody_keeps_is_forgotten(each_kind):
    engine = each_kind.engine()
    text = ids(12)
    engine.forward([Row(0, 0, [*text, *ids(9, 7)], 0, PARENTS)])
    assert engine.token_ids(0) == tuple(text)
    assert_close(engine.forward([Row(0, 12, [3, 4], 2)]), each_kind.plain([*text, 3, 4])[-2:])
    with pytest.raises(ValueError, match="no path"):
        engine.keep(0, [1])


def test_a_tree_without_its_mask_would_be_seen(tiny, monkeypatch: pytest.MonkeyPatch):
    model = tiny("llama")
    engine = model.engine()
    monkeypatch.setattr(Group, "has_tree", False)
    tree = Tree(ids(9, 7), PARENTS)
    logits = engine.forward([Row(0, 0, [3, *tree.tokens], 10, PARENTS)])
    assert not torch.allclose(logits[3], model.plain([3, tree.tokens[2]])[-1], atol=1e-2)


def test_positions_count_by_depth():
    assert Span(0, 4, 6, (0, 0, 1, 3)).positions() == [4, 5, 6, 6, 7, 8]
    assert Span(0, 4, 3).positions() == [4, 5, 6]


def engines(tiny) -> list[Engine]:
    return [tiny("llama").engine(), TableEngine(V)]


@pytest.mark.parametrize("index", range(2))
@pytest.mark.parametrize("path", [[4], [1, 2], [1, 6], [2, 4], [0], [10], [1, 4, 5]])
def test_what_is_no_path_is_refused(tiny, index, path):
    engine = engines(tiny)[index]
    engine.forward([Row(0, 0, [3, *ids(9, 7)], 1, PARENTS)])
    with pytest.raises(ValueError, match="no path"):
        engine.keep(0, path)
    assert engine.length(0) == 1


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (Row(0, 0, [1, 2], 1, (0, 0)), "leave no token to hang from"),
        (Row(0, 0, [1, 2, 3], 1, (0, 2)), r"parent of node 2 must be in \[0, 1\], got 2"),
        (Row(0, 0, [1, 2], 1, (-1,)), r"parent of node 1 must be in \[0, 0\], got -1"),
    ],
)
def test_malformed_trees_are_refused(tiny, row, message):
    for engine in engines(tiny):
        with pytest.raises(ValueError, match=message):
            engine.forward([row])


@pytest.mark.parametrize("kind", ["batch-invariant", pytest.param("llama.cpp llama", marks=needs_llamacpp)])
def test_engines_without_trees_say_so(tiny, kind):
    engine = tiny("llama").engine(batch_invariant=True) if kind == "batch-invariant" else tiny(kind).engine()
    assert not engine.trees
    with pytest.raises(UnsupportedError, match="no token trees"):
        engine.forward([Row(0, 0, [1, 2, 3], 1, (0, 0))])
    engine.forward([Row(0, 0, [1, 2, 3], 1)])
    engine.keep(0, [])
    assert engine.length(0) == 3


def test_the_table_engine_agrees_with_itself_over_paths():
    engine, tree = TableEngine(V, order=3), Tree(ids(9, 7), PARENTS)
    logits = engine.forward([Row(0, 0, [7, 8, *tree.tokens], 10, PARENTS)])
    cold = torch.cat([TableEngine(V, order=3).forward([Row(0, 0, [7, 8, *path], 1)]) for path in paths_of(tree)])
    assert torch.equal(logits, cold)
    engine.keep(0, [1, 4, 7])
    assert engine.cached(0) == (7, 8, *(tree.tokens[i] for i in (0, 3, 6)))
