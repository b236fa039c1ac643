"""The coupled rule: its law, its acceptance, and that the text is the target's own whatever was proposed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from draftproof.sampling.params import Rule, SamplingParams
from draftproof.sampling.race import exponentials, winners
from draftproof.sampling.rng import derive_key, key_words
from draftproof.testing.statistics import g_test
from draftproof.verification.round import RoundInput, verify_rounds
from tests.exact.enumeration import random_table

PARAMS = SamplingParams(rule=Rule.COUPLED)


def acceptance(p: np.ndarray, q: np.ndarray) -> float:
    """sum_x 1 / sum_y max(p(y) / p(x), q(y) / q(x)), over tokens that both can draw."""
    both = np.flatnonzero((p > 0) & (q > 0))
    return float(sum(1 / np.maximum(p / p[x], q / q[x]).sum() for x in both))


def noise(key: bytes, position: int, cells: int) -> np.ndarray:
    """The noise of the first 64 * cells tokens."""
    keys = np.broadcast_to(key_words(key), (cells, 4))
    return exponentials(keys, np.full(cells, position), np.arange(cells)).reshape(-1)


@pytest.mark.parametrize("seed", range(10))
def test_the_winner_of_a_race_has_the_law_p(seed: int) -> None:
    """P(x wins) is the integral over its time of the probability that all others take longer."""
    for kind in ("dense", "zeros", "ties"):
        p = random_table(4, seed, kind)(())
        for x in np.flatnonzero(p):
            others = np.delete(p, x)
            rates = others / p[x]
            mass, _ = integrate.quad(
                lambda t, rates=rates: np.exp(-t) * np.prod(np.exp(-t * rates)), 0, np.inf, epsabs=1e-13
            )
            assert mass == pytest.approx(p[x], abs=1e-10)


def test_the_noise_is_exponential_and_fresh_for_every_key_position_and_token() -> None:
    flat = np.concatenate([noise(derive_key(s, [0], 0, 0), at, 1) for s in range(40) for at in range(40)])
    assert len(np.unique(flat)) == len(flat)
    assert 0 < flat.min() < 1e-3
    counts = np.histogram(np.exp(-flat), bins=64, range=(0, 1))[0]
    assert g_test({(i,): int(c) for i, c in enumerate(counts)}, {(i,): 1 / 64 for i in range(64)}).p_value > 1e-4


def test_numbers_of_one_cell_are_independent_and_of_one_law() -> None:
    """As order statistics have it: gaps of n exponential numbers times n, n - 1, …, whichever token has the least."""
    cells = np.array([noise(derive_key(s, [3], 0, 0), 7, 1) for s in range(4000)])
    assert stats.chisquare(np.bincount(cells.argmin(axis=1), minlength=64)).pvalue > 1e-4
    assert stats.chisquare(np.bincount(cells.argmax(axis=1), minlength=64)).pvalue > 1e-4
    ranked = np.sort(cells, axis=1)
    gaps = np.diff(ranked, axis=1, prepend=0.0) * np.arange(64, 0, -1)
    for i in (0, 1, 2, 31, 62, 63):
        assert stats.kstest(gaps[:, i], "expon").pvalue > 1e-4
    for token in (0, 1, 63):
        assert stats.kstest(cells[:, token], "expon").pvalue > 1e-4
    correlations = np.corrcoef(cells.T)[np.triu_indices(64, 1)] * np.sqrt(len(cells))
    assert stats.kstest(correlations, "norm").pvalue > 1e-4
    # A cell whose owner is drawn apart from its number would show: here the least goes to the wrong token.
    wrong = np.roll(cells, 1, axis=1)
    wrong[:, 0] = cells.min(axis=1)
    assert stats.kstest(wrong[:, 0], "expon").pvalue < 1e-20


def test_a_token_of_no_mass_never_wins_and_sparse_rows_meet_the_same_noise() -> None:
    rng = np.random.default_rng(0)
    keys = [derive_key(s, [1], 0, 0) for s in range(200)]
    few = np.zeros((200, 4096))
    for row in few:
        row[rng.choice(4096, size=20, replace=False)] = rng.random(20)
    found = winners(torch.from_numpy(few), keys, range(200)).numpy()
    whole = [int(np.argmax(row / noise(key, at, 64))) for at, (row, key) in enumerate(zip(few, keys, strict=True))]
    assert found.tolist() == whole
    assert np.all(few[np.arange(200), found] > 0)


@pytest.mark.parametrize("scale", [0.0, 1.0, 4.0])
def test_cells_left_out_of_a_race_hold_no_winner(scale: float) -> None:
    rng = np.random.default_rng(1)
    keys = [derive_key(s, [4], 0, 0) for s in range(300)]
    p = np.exp(scale * rng.standard_normal((300, 1000))).astype(np.float32)
    found = winners(torch.from_numpy(p), keys, range(300)).tolist()
    promising = []
    for at, (row, key, winner) in enumerate(zip(p, keys, found, strict=True)):
        numbers = noise(key, at, 16)
        assert winner == int(np.argmax(row / numbers[:1000]))
        bounds = np.pad(row, (0, 24)).reshape(16, 64).max(axis=1) / numbers.reshape(16, 64).min(axis=1)
        promising.append(int(bounds.argmax()))
    # The most promising cell alone would not do.
    assert promising != [winner // 64 for winner in found]


def test_a_proposal_is_accepted_as_often_as_computed() -> None:
    """And the acceptance is at least (1 - TV) / (1 + TV)."""
    outputs = 6000
    keys = [derive_key(s, [2], 0, 0) for s in range(outputs)]
    p, q = random_table(4, 1, "dense")(()), random_table(4, 2, "dense")(())
    mine, theirs = (winners(torch.from_numpy(row).expand(outputs, 4), keys, [5] * outputs).numpy() for row in (p, q))
    expected = acceptance(p, q)
    tv = np.abs(p - q).sum() / 2
    assert expected >= (1 - tv) / (1 + tv)
    counts = {(0,): int((mine != theirs).sum()), (1,): int((mine == theirs).sum())}
    assert g_test(counts, {(0,): 1 - expected, (1,): expected}).p_value > 1e-4
    assert (
        g_test({(x,): int((mine == x).sum()) for x in range(4)}, {(x,): float(p[x]) for x in range(4)}).p_value > 1e-4
    )


def _text(seeds: range, gamma: int, draft: int, length: int) -> list[list[int]]:
    """Texts of many seeds: target and draft are tables of the last token; the draft draws with the same noise."""
    p, q = (np.stack([random_table(4, table, "dense")((c,)) for c in range(5)]) for table in (1, draft))
    keys = [derive_key(s, [3], 0, 0) for s in seeds]
    texts: list[list[int]] = [[] for _ in seeds]
    logits = torch.from_numpy(np.log(p)).float()
    while waiting := [i for i, text in enumerate(texts) if len(text) < length]:
        starts = [1 + len(texts[i]) for i in waiting]
        blocks = [np.array([texts[i][-1] if texts[i] else 4 for i in waiting])]
        for k in range(gamma):
            rows = torch.from_numpy(q[blocks[-1]])
            blocks.append(winners(rows, [keys[i] for i in waiting], [start + k for start in starts]).numpy())
        contexts = np.stack(blocks, axis=1)
        rounds = [
            RoundInput(
                params=PARAMS, prompt_ids=[3], output_ids=texts[i], key=keys[i], block_start=start, tokens=row[1:]
            )
            for i, start, row in zip(waiting, starts, contexts.tolist(), strict=True)
        ]
        for i, asked, result in zip(waiting, rounds, verify_rounds(logits[contexts.reshape(-1)], rounds), strict=True):
            texts[i] = [*texts[i], *asked.tokens[: result.accepted], result.next_id]
    return [text[:length] for text in texts]


@pytest.mark.parametrize("seeds", [range(1000), pytest.param(range(10_000), marks=pytest.mark.slow)], ids=len)
def test_for_every_seed_the_text_is_the_one_without_a_draft(seeds: range) -> None:
    assert _text(seeds, 3, 2, 5) == _text(seeds, 0, 1, 5)


def test_neither_gamma_nor_the_draft_changes_a_text() -> None:
    alone = _text(range(100), 0, 1, 12)
    for gamma, draft in ((1, 2), (2, 7), (8, 2), (4, 1)):
        assert _text(range(100), gamma, draft, 12) == alone
