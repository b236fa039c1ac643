"""Many rounds with the real generator against the enumerated law, fixed seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from draftproof.sampling.draft_q import Lattice, draw
from draftproof.sampling.params import Rule, SamplingParams
from draftproof.sampling.race import winners
from draftproof.sampling.rng import Draw, Purpose, derive_key, random_words, uniforms
from draftproof.testing.statistics import g_test, power
from draftproof.verification import round as round_module
from draftproof.verification.round import RoundInput, verify_rounds
from tests.exact import keyed_rounds
from tests.exact.enumeration import drawing, fixed, honest, output_law, target_law, tempered
from tests.exact.keyed_rounds import (
    GAMMA,
    TOKENS,
    VOCAB,
    Ints,
    P,
    Q,
    by_block,
    by_position,
    chi_square,
    p_table,
    q_table,
)
from tests.exact.lossy import Lossy

OUTPUTS = 12_000
LEVEL = 1e-4
CAUGHT = 1e-6
LAW = target_law(p_table, TOKENS, VOCAB)

COUNTS = np.round(Q * 2**20).astype(np.int64)
LATTICES = [Lattice(20, np.arange(VOCAB), np.array([zero, 2**20 - zero])) for zero in COUNTS[:, 0]]
LOGITS = torch.from_numpy(np.log(P)).float()

# How the draft names its numbers; a test puts a wrong one here.
LAYOUT: dict[int, Callable[[Draw], Draw]] = {0: lambda d: d}


TOKEN, BLOCK, COUPLED = (SamplingParams(rule=rule) for rule in (Rule.TOKEN, Rule.BLOCK, Rule.COUPLED))
LENIENT = SamplingParams(rule=Rule.LENIENT, lenience=0.6)
Layout = Callable[[Draw], Draw]


def propose(params: SamplingParams, keys: Sequence[bytes], starts: Sequence[int], contexts: Ints, k: int) -> Ints:
    """Proposal k of every block, drawn as the draft does."""
    if params is COUPLED:
        return winners(torch.from_numpy(Q[contexts]), keys, [start + k for start in starts]).numpy()
    draws = [LAYOUT[0](Draw(key, start, k, Purpose.DRAFT)) for key, start in zip(keys, starts, strict=True)]
    pairs = zip(contexts, random_words(draws).tolist(), strict=True)
    return np.array([draw(LATTICES[context], word) for context, word in pairs])


def served_outputs(outputs: int, seed: int, params: SamplingParams = TOKEN) -> Counter[tuple[int, ...]]:
    """First tokens of many requests, drafted and verified as the services do, all requests in one batch per round."""
    keys = [derive_key(seed, [0], index, 0) for index in range(outputs)]
    texts: list[list[int]] = [[] for _ in keys]
    while waiting := [i for i, text in enumerate(texts) if len(text) < TOKENS]:
        starts = [1 + len(texts[i]) for i in waiting]
        blocks = [np.array([texts[i][-1] if texts[i] else VOCAB for i in waiting])]
        for k in range(GAMMA):
            blocks.append(propose(params, [keys[i] for i in waiting], starts, blocks[-1], k))
        rounds, rows = [], []
        for i, contexts in zip(waiting, np.stack(blocks, axis=1).tolist(), strict=True):
            rows += contexts
            rounds.append(
                RoundInput(
                    params=params,
                    prompt_ids=[0],
                    output_ids=texts[i],
                    key=keys[i],
                    block_start=1 + len(texts[i]),
                    tokens=contexts[1:],
                    qs=[] if params is COUPLED else [LATTICES[context] for context in contexts[:-1]],
                )
            )
        for i, asked, result in zip(waiting, rounds, verify_rounds(LOGITS[rows], rounds), strict=True):
            texts[i] = [*texts[i], *asked.tokens[: result.accepted], result.next_id]
    return Counter(tuple(text[:TOKENS]) for text in texts)


def test_the_sample_is_large_enough_to_see_a_small_lie() -> None:
    """A draft that draws at temperature 1.35 and reports 1 would be found with near certainty."""
    warm = output_law(p_table, drawing(q_table, lambda c: tempered(q_table(c), 1.35), fixed(GAMMA)), TOKENS, VOCAB)
    assert power(LAW, warm, OUTPUTS, LEVEL) > 0.99


@pytest.mark.parametrize("params", [TOKEN, BLOCK, COUPLED], ids=lambda params: params.rule)
def test_served_outputs_follow_the_targets_law(params: SamplingParams) -> None:
    assert g_test(served_outputs(OUTPUTS, seed=1, params=params), LAW).p_value > LEVEL


def test_a_lossy_rule_follows_the_law_it_says_and_no_other() -> None:
    served = served_outputs(OUTPUTS, seed=1, params=LENIENT)
    said = output_law(p_table, honest(q_table, fixed(GAMMA)), TOKENS, VOCAB, Lossy(LENIENT))
    assert g_test(served, said).p_value > LEVEL
    assert g_test(served, LAW).p_value < CAUGHT


def _draft_number_for_the_test(d: Draw) -> Draw:
    return replace(d, purpose=Purpose.DRAFT) if d.purpose is Purpose.ACCEPT else d


def _without_block_start(d: Draw) -> Draw:
    return replace(d, block_start=0)


def _by_position(d: Draw) -> Draw:
    return replace(d, block_start=0, offset=d.block_start + d.offset)


@pytest.mark.parametrize(
    ("wrong", "params"),
    [(_draft_number_for_the_test, TOKEN), (_without_block_start, TOKEN), (_by_position, BLOCK)],
)
def test_a_number_used_twice_is_caught(wrong: Layout, params: SamplingParams, monkeypatch: pytest.MonkeyPatch) -> None:
    """No enumeration can see these: every formula is right."""

    def reusing(draws: Sequence[Draw]) -> np.ndarray:
        return uniforms([wrong(d) for d in draws])

    monkeypatch.setattr(round_module, "uniforms", reusing)
    if wrong is _by_position:
        monkeypatch.setitem(LAYOUT, 0, wrong)
    assert g_test(served_outputs(OUTPUTS, seed=1, params=params), LAW).p_value < CAUGHT


@pytest.mark.parametrize(
    ("rule", "layout", "exact"),
    [
        (keyed_rounds.token_rule, by_block, True),
        (keyed_rounds.token_rule, by_position, True),
        (keyed_rounds.block_rule, by_block, True),
        (keyed_rounds.block_rule, by_position, False),
    ],
)
def test_a_rule_that_judges_whole_blocks_needs_keys_that_name_the_block(
    rule: keyed_rounds.Rule, layout: keyed_rounds.Layout, exact: bool
) -> None:
    statistic = chi_square(keyed_rounds.sample(rule, layout, 200_000, seed=1), LAW)
    assert (stats.chi2.sf(statistic, 15) > LEVEL) == exact
    if not exact:
        assert stats.chi2.sf(statistic, 15) < CAUGHT
