"""Draft distributions: exact rounding, exact draws, and what counts as malformed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from draftproof.sampling import draft_q
from draftproof.sampling.draft_q import Dense, DraftQ, Lattice, MalformedQError, OneHot, Sparse

LAST_WORD = 2**64 - 1


def _ids(*values: int) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def _masses(*values: float) -> NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


def _lattice(bits: int, counts: dict[int, int]) -> Lattice:
    return Lattice(bits, _ids(*counts), _ids(*counts.values()))


# --- lattice draws, enumerated


@st.composite
def lattices(draw: st.DrawFn) -> Lattice:
    bits = draw(st.integers(1, 10))
    size = draw(st.integers(1, min(8, 2**bits)))
    ids = sorted(draw(st.sets(st.integers(0, 50), min_size=size, max_size=size)))
    cuts = sorted(draw(st.sets(st.integers(1, 2**bits - 1), min_size=size - 1, max_size=size - 1)))
    return Lattice(bits, _ids(*ids), np.diff(_ids(0, *cuts, 2**bits)))


def _drawn_counts(q: Lattice, draw: Callable[[Lattice, int], int]) -> dict[int, int]:
    """How many of the 2**bits integers select each token, whatever the word's lower bits say."""
    low = 2 ** (64 - q.bits) - 1
    counts: dict[int, int] = {}
    for r in range(2**q.bits):
        tokens = {draw(q, (r << (64 - q.bits)) | tail) for tail in (0, low // 3, low)}
        for token in tokens:
            counts[token] = counts.get(token, 0) + 1
    return counts


@settings(deadline=None, max_examples=40)
@given(lattices())
def test_every_count_is_drawn_exactly_that_often(q: Lattice) -> None:
    draft_q.validate(q, 51)
    assert _drawn_counts(q, draft_q.draw) == dict(zip(q.ids.tolist(), q.counts.tolist(), strict=True))


def test_the_enumeration_catches_wrong_draws() -> None:
    q = _lattice(4, {2: 3, 5: 1, 9: 12})

    def pick(q: Lattice, index: int) -> int:
        return int(q.ids[min(index, len(q.ids) - 1)])

    def not_strict(q: Lattice, word: int) -> int:
        return pick(q, int(np.searchsorted(np.cumsum(q.counts), word >> (64 - q.bits), side="left")))

    def lower_bits(q: Lattice, word: int) -> int:
        return pick(q, int(np.searchsorted(np.cumsum(q.counts), word & (2**q.bits - 1), side="right")))

    def modulo(q: Lattice, word: int) -> int:
        return pick(q, int(np.searchsorted(np.cumsum(q.counts), word % (2**q.bits - 1), side="right")))

    def next_id(q: Lattice, word: int) -> int:
        return draft_q.draw(q, word) + 1

    truth = dict(zip(q.ids.tolist(), q.counts.tolist(), strict=True))
    assert _drawn_counts(q, draft_q.draw) == truth
    for wrong in (not_strict, lower_bits, modulo, next_id):
        assert _drawn_counts(q, wrong) != truth, wrong.__name__


# --- float draws

FLOATS: list[DraftQ] = [
    Dense(_masses(0, 0, 0.25, 0, 0.75, 0)),
    Dense(_masses(0, 1, 0)),
    Dense(_masses(0, 1e-45, 1, 1e-45, 0)),
    Dense(_masses(1, 0, 0, 0)),
    Dense(_masses(0, 0, 0, 1)),
    Sparse(_ids(3, 7, 11, 90), _masses(0, 0.5, 0.5, 0)),
    Sparse(_ids(3, 7), _masses(1e-45, 1)),
    Dense(_masses(0, *[1 / 3] * 3, 0)),
    OneHot(5),
]


@pytest.mark.parametrize("q", FLOATS)
@pytest.mark.parametrize("word", [0, 1, 2**11 - 1, 2**11, 2**63, LAST_WORD - 2**11, LAST_WORD])
def test_zero_mass_is_never_drawn(q: DraftQ, word: int) -> None:
    draft_q.validate(q, _size(q))
    assert draft_q.mass(q, draft_q.draw(q, word)) > 0


def _size(q: DraftQ) -> int:
    return len(q.masses) if isinstance(q, Dense) else 100


def test_the_ends_of_u_reach_the_first_and_the_last_token_with_mass() -> None:
    q = Dense(_masses(0, 0.25, 0, 0.75, 0))
    assert (draft_q.draw(q, 0), draft_q.draw(q, LAST_WORD)) == (1, 3)
    # Strict: the word for exactly u = 1/4 belongs to the next token.
    assert (draft_q.draw(q, 2**62 - 1), draft_q.draw(q, 2**62)) == (1, 3)
    # Scaled by its own total, though it isn't one.
    half = Sparse(_ids(1, 3), _masses(0.125, 0.375))
    assert (draft_q.draw(half, 2**62 - 1), draft_q.draw(half, 2**62)) == (1, 3)


def test_a_draw_that_is_not_strict_lands_on_zero_mass() -> None:
    cumulative = np.cumsum(_masses(0, 0.25, 0.75))
    assert np.searchsorted(cumulative, 0.0, side="left") == 0
    assert draft_q.draw(Dense(_masses(0, 0.25, 0.75)), 0) == 1


def test_dense_and_sparse_forms_of_one_row_draw_the_same() -> None:
    generator = torch.Generator().manual_seed(3)
    rows = torch.rand(4, 300, generator=generator) * (torch.rand(4, 300, generator=generator) < 0.1)
    rows /= rows.sum(dim=-1, keepdim=True)
    words = np.random.default_rng(3).integers(0, 2**64, 200, dtype=np.uint64).tolist()
    for full, listed in zip(draft_q.dense(rows), draft_q.sparsify(rows), strict=True):
        draft_q.validate(full, 300)
        draft_q.validate(listed, 300)
        assert [draft_q.draw(full, w) for w in words] == [draft_q.draw(listed, w) for w in words]


# --- masses


def test_support_is_normalised_and_agrees_with_mass() -> None:
    qs: list[tuple[DraftQ, dict[int, float]]] = [
        (_lattice(3, {1: 2, 4: 6}), {1: 0.25, 4: 0.75}),
        (Sparse(_ids(0, 3), _masses(0.3, 0.70003)), {0: 0.3 / 1.00003, 3: 0.70003 / 1.00003}),
        (Dense(_masses(0.5, 0, 0.49995)), {0: 0.5 / 0.99995, 1: 0.0, 2: 0.49995 / 0.99995}),
        (OneHot(2), {2: 1.0}),
    ]
    for q, expected in qs:
        ids, masses = draft_q.support(q)
        assert ids.dtype == np.int64
        assert masses.dtype == np.float64
        assert ids.tolist() == list(expected)
        assert masses == pytest.approx(list(expected.values()), abs=1e-7)
        assert masses.sum() == pytest.approx(1.0, abs=1e-15)
        assert [draft_q.mass(q, i) for i in ids.tolist()] == masses.tolist()
        assert [draft_q.mass(q, i) for i in (-1, 5, 99)] == [0.0, 0.0, 0.0]


# --- rounding to a lattice


def _oracle(row: list[float], entries: int, bits: int) -> dict[int, int]:
    """Largest remainder in plain Python."""
    enough = [i for i in range(len(row)) if row[i] >= 2.0 ** -(bits + 1)] or list(range(len(row)))
    kept = sorted(sorted(enough, key=lambda i: (-row[i], i))[:entries])
    total = 0.0
    for i in kept:
        total += row[i]
    scaled = {i: row[i] / total * 2.0**bits for i in kept}
    counts = {i: int(x) for i, x in scaled.items()}
    left = 2**bits - sum(counts.values())
    for i in sorted(kept, key=lambda i: (counts[i] - scaled[i], i))[:left]:
        counts[i] += 1
    return {i: c for i, c in counts.items() if c}


rows = st.lists(
    st.one_of(st.just(0.0), st.sampled_from([0.125, 0.25, 1.0]), st.floats(0, 1, width=32)), min_size=1, max_size=12
).filter(lambda row: sum(row) > 0)


@settings(deadline=None, max_examples=200)
@given(rows, st.integers(1, 15), st.integers(1, 24))
def test_rounding_is_largest_remainder_and_sums_exactly(row: list[float], entries: int, bits: int) -> None:
    (q,) = draft_q.quantise(torch.tensor([row]), entries, bits)
    draft_q.validate(q, len(row))
    assert int(q.counts.sum()) == 2**bits
    assert len(q.ids) <= entries
    assert all(row[i] > 0 for i in q.ids.tolist())
    exact = [float(v) for v in np.array(row, dtype=np.float32)]
    assert dict(zip(q.ids.tolist(), q.counts.tolist(), strict=True)) == _oracle(exact, entries, bits)


def test_ties_go_to_the_lower_id() -> None:
    ties = torch.full((1, 1000), 1e-3)
    (q,) = draft_q.quantise(ties, 7, 8)
    assert q.ids.tolist() == list(range(7))
    # 256 = 7 * 36 + 4: the four left over go to the lowest ids.
    assert q.counts.tolist() == [37, 37, 37, 37, 36, 36, 36]
    # torch's topk alone leaves open which ones it takes.
    mixed = torch.full((3, 500), 1e-3)
    mixed[1, 400] = 0.5
    mixed[2, 499] = mixed[2, 0] = 0.25
    first, second, third = draft_q.quantise(mixed, 3, 20)
    assert first.ids.tolist() == [0, 1, 2]
    assert second.ids.tolist() == [0, 1, 400]
    assert third.ids.tolist() == [0, 1, 499]


def test_one_hot_rows_round_to_one_count() -> None:
    for dtype in (torch.float32, torch.float64):
        one_hot = torch.eye(5, dtype=dtype)
        for i, q in enumerate(draft_q.quantise(one_hot, 3, 16)):
            assert (q.ids.tolist(), q.counts.tolist()) == ([i], [2**16])


def test_fewer_tokens_with_mass_than_entries() -> None:
    (q,) = draft_q.quantise(torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]]), 4, 4)
    assert (q.ids.tolist(), q.counts.tolist()) == ([1, 3], [8, 8])
    (q,) = draft_q.quantise(torch.tensor([[0.75, 0.25]]), 100, 2)
    assert (q.ids.tolist(), q.counts.tolist()) == ([0, 1], [3, 1])


def test_more_entries_than_units() -> None:
    (q,) = draft_q.quantise(torch.linspace(1, 2, 64)[None], 64, 1)
    assert (q.ids.tolist(), q.counts.tolist()) == ([62, 63], [1, 1])


def test_what_rounds_to_no_count_costs_no_entry_unless_nothing_else_is_there() -> None:
    (q,) = draft_q.quantise(torch.tensor([[0.01, 0.49, 0.0, 0.5]]), 9, 4)
    assert (q.ids.tolist(), q.counts.tolist()) == ([1, 3], [8, 8])
    (q,) = draft_q.quantise(torch.full((1, 1000), 1e-3), 4, 2)
    assert (q.ids.tolist(), q.counts.tolist()) == ([0, 1, 2, 3], [1, 1, 1, 1])


def test_every_row_may_have_a_limit_of_its_own() -> None:
    batch = torch.rand(3, 50, generator=torch.Generator().manual_seed(5))
    batch /= batch.sum(dim=1, keepdim=True)
    together = draft_q.quantise(batch, [1, 20, 7], 16)
    assert [len(q.ids) for q in together] == [1, 20, 7]
    for i, (q, limit) in enumerate(zip(together, [1, 20, 7], strict=True)):
        (alone,) = draft_q.quantise(batch[i : i + 1], limit, 16)
        assert (alone.ids.tolist(), alone.counts.tolist()) == (q.ids.tolist(), q.counts.tolist())


def test_rounding_is_the_same_alone_and_in_a_batch() -> None:
    batch = torch.randn(40, 4000, generator=torch.Generator().manual_seed(4)).mul(3).softmax(dim=-1)
    for i, q in enumerate(draft_q.quantise(batch, 128, 20)):
        (alone,) = draft_q.quantise(batch[i : i + 1], 128, 20)
        assert np.array_equal(alone.ids, q.ids)
        assert np.array_equal(alone.counts, q.counts)
        assert int(q.counts.sum()) == 2**20


def test_the_sum_check_catches_plain_rounding() -> None:
    thirds = np.full(3, 1 / 3)
    rounded = np.rint(thirds * 2**8).astype(np.int64)
    with pytest.raises(MalformedQError, match="sum to 255"):
        draft_q.validate(Lattice(8, _ids(0, 1, 2), rounded), 3)


@pytest.mark.parametrize("bad", [[float("nan"), 0.5], [float("inf"), 0.5], [0.0, 0.0]])
def test_what_is_no_distribution_is_not_rounded(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="not a distribution"):
        draft_q.quantise(torch.tensor([[0.5, 0.5], bad]), 2, 8)


def test_rounding_wants_sensible_settings() -> None:
    row = torch.tensor([[1.0]])
    for entries, bits in ((0, 8), (1, 0), (1, 25)):
        with pytest.raises(ValueError, match="must be"):
            draft_q.quantise(row, entries, bits)
    assert draft_q.quantise(torch.empty(0, 5), 2, 8) == []


def test_float_forms_keep_what_is_left_after_float32() -> None:
    row = torch.tensor([[0.5, 1e-60, 0.0, 0.5]], dtype=torch.float64)
    (listed,) = draft_q.sparsify(row)
    assert listed.ids.tolist() == [0, 3]
    assert listed.masses.dtype == np.float32
    assert listed.ids.dtype == np.int64
    (full,) = draft_q.dense(row)
    assert full.masses.tolist() == [0.5, 0.0, 0.0, 0.5]
    assert full.masses.dtype == np.float32


# --- malformed

NAN, INF = float("nan"), float("inf")
MALFORMED: list[tuple[Any, str]] = [
    (Lattice(0, _ids(0), _ids(1)), "bits"),
    (Lattice(25, _ids(0), _ids(2**25)), "bits"),
    (Lattice(-1, _ids(0), _ids(1)), "bits"),
    (Lattice(2, _ids(), _ids()), "no ids"),
    (Lattice(2, _ids(3, 1), _ids(2, 2)), "ascending"),
    (Lattice(2, _ids(1, 1), _ids(2, 2)), "ascending"),
    (Lattice(2, _ids(-1, 1), _ids(2, 2)), r"not in \[0, 10\)"),
    (Lattice(2, _ids(1, 10), _ids(2, 2)), r"not in \[0, 10\)"),
    (Lattice(2, _ids(1, 3), _ids(4)), "shape"),
    (Lattice(2, _ids(1, 3), _ids(4, 0)), "counts"),
    (Lattice(2, _ids(1, 3), _ids(5, -1)), "counts"),
    (Lattice(2, _ids(1, 3), _ids(2, 1)), "sum to 3"),
    (Lattice(2, _ids(1, 3), _ids(2, 3)), "sum to 5"),
    (Lattice(2, _ids(0, 1, 2, 3, 4), _ids(2**62, 2**62, 2**62, 2**62, 4)), "counts"),
    (Sparse(_ids(), _masses()), "no ids"),
    (Sparse(_ids(1, 0), _masses(0.5, 0.5)), "ascending"),
    (Sparse(_ids(1, 10), _masses(0.5, 0.5)), r"not in \[0, 10\)"),
    (Sparse(_ids(1, 2), _masses(1)), "shape"),
    (Sparse(_ids(1, 2), _masses(NAN, 1)), "finite"),
    (Sparse(_ids(1, 2), _masses(INF, -INF)), "finite"),
    (Sparse(_ids(1, 2), _masses(1.5, -0.5)), "negative"),
    (Sparse(_ids(1, 2), _masses(0, 0)), "sum to 0"),
    (Sparse(_ids(1, 2), _masses(0.5, 0.5002)), "sum to 1.0002"),
    (Sparse(_ids(1, 2), _masses(0.5, 0.4998)), "sum to 0.9998"),
    (Sparse(_ids(1, 2), _masses(3e38, 3e38)), "sum to 6e"),
    (Dense(_masses(*[0.125] * 8)), "shape"),
    (Dense(_masses(*[1 / 11] * 11)), "shape"),
    (Dense(_masses(NAN, *[0.1] * 9)), "finite"),
    (Dense(_masses(-0.1, 0.3, *[0.1] * 8)), "negative"),
    (Dense(_masses(*[0.2] * 10)), "sum to 2"),
    (OneHot(-1), "not in"),
    (OneHot(10), "not in"),
]


@pytest.mark.parametrize(("q", "problem"), MALFORMED)
def test_malformed_q_is_refused(q: DraftQ, problem: str) -> None:
    with pytest.raises(MalformedQError, match=problem):
        draft_q.validate(q, 10)


def test_well_formed_q_passes() -> None:
    for q in (
        Lattice(24, _ids(0, 9), _ids(1, 2**24 - 1)),
        Lattice(1, _ids(9), _ids(2)),
        Sparse(_ids(0, 9), _masses(0.5, 0.50005)),
        Sparse(_ids(0, 9), _masses(-0.0, 1)),
        Dense(_masses(*[0.1] * 10)),
        OneHot(0),
        OneHot(9),
    ):
        draft_q.validate(q, 10)
