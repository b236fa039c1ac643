"""What the audit bets on has even odds, by enumeration: every block, every verdict, every next token, every cell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor

from draftproof.audit.transform import Interval
from draftproof.sampling.draft_q import Lattice, OneHot, Sparse, dense
from draftproof.sampling.params import Rule, SamplingParams
from draftproof.verification import block_rule, token_rule
from draftproof.verification.drafts import Drafts
from draftproof.verification.evidence import Seen, committed, proposed
from draftproof.verification.judge import Judgement, Proposed, judge
from tests.exact.lossy import Lossy

VOCAB, GAMMA, BITS = 3, 2, 10
RULES = [(Rule.TOKEN, token_rule), (Rule.BLOCK, block_rule)]
BELOW_ONE = 1.0 - 2.0**-53
CELLS = 8
STAKES = np.random.default_rng(11).dirichlet(np.ones(CELLS), size=GAMMA + 1) * CELLS
"""Densities to bet with, one for each place in a block."""


@dataclass(frozen=True)
class Outcome:
    """One way a round can go.

    Attributes:
        probability: of it.
        proposals: all that were drawn.
        accepted: how many of them stay.
        tokens: what is committed.
        surplus: accepted less its expectation, as the server counts it.
        seen: what the server shows to the audit.
        overlaps: the sum of min(p, q) at every position, reached or not.
    """

    probability: float
    proposals: tuple[int, ...]
    accepted: int
    tokens: list[int]
    surplus: float
    seen: Seen
    overlaps: list[float]


def lattice(rng: np.random.Generator) -> Lattice:
    cuts = np.sort(rng.choice(np.arange(1, 2**BITS), size=VOCAB - 1, replace=False))
    return Lattice(BITS, np.arange(VOCAB), np.diff(cuts, prepend=0, append=2**BITS))


def outcomes(
    rule: Rule,
    law: ModuleType | Lossy,
    seed: int,
    gamma: int = GAMMA,
    resample: bool = False,
) -> Iterator[Outcome]:
    """All outcomes of one round of random p and q that depend on what was drawn."""
    params = law.params if isinstance(law, Lossy) else SamplingParams(rule=rule)
    rng = np.random.default_rng(seed)
    p_of = {c: rng.dirichlet(np.full(VOCAB, 0.7)) for n in range(gamma + 1) for c in product(range(VOCAB), repeat=n)}
    q_of = {c: lattice(rng) for n in range(gamma) for c in product(range(VOCAB), repeat=n)}
    for proposals in product(range(VOCAB), repeat=gamma):
        p = torch.tensor(np.array([p_of[proposals[:i]] for i in range(gamma + 1)]))
        qs = [q_of[proposals[:i]] for i in range(gamma)]
        q = torch.tensor(np.array([each.counts / 2**BITS for each in qs])).view(gamma, VOCAB)
        ids = torch.tensor(proposals, dtype=torch.int64)
        drawn = float(q[torch.arange(gamma), ids].prod())
        totals = p.sum(dim=1)
        drafts = Drafts.collect(qs, range(gamma), totals, VOCAB)
        asked = Proposed(params, bytes(32), 1, 0, proposals)
        for k, ends in enumerate(law.outcome_law(p[None], q[None], ids[None], torch.tensor([gamma]))[0]):
            if resample and k < gamma:
                ends = ends.sum() * p[k]
            judged = judged_as(p, totals, drafts, asked, k)
            if judged is None:
                assert ends.abs().sum() < 1e-12
                continue
            for token in range(VOCAB):
                tokens = [*proposals[:k], token]
                (seen,) = committed(p, totals, judged.drafts, [range(k + 1)], [tokens], [min(gamma, k + 1)])
                yield Outcome(
                    probability=drawn * float(ends[token]),
                    proposals=proposals,
                    accepted=k,
                    tokens=tokens,
                    surplus=k - sum(judged.expected[0]),
                    seen=seen,
                    overlaps=torch.minimum(p[:gamma], q).sum(dim=1).tolist(),
                )


def judged_as(p: Tensor, totals: Tensor, drafts: Drafts, asked: Proposed, accepted: int) -> Judgement | None:
    """The server's own judgement of a block of which `accepted` stay; None where that can't be."""
    u = torch.full((len(p),), BELOW_ONE, dtype=torch.float64)
    if asked.params.rule is Rule.BLOCK:
        u[accepted - 1 : accepted] = 0.0
    else:
        u[:accepted] = 0.0
    judgement = judge(p, totals, drafts, u, [asked])
    return judgement if judgement.accepted[0] == accepted else None


def mean(found: Iterator[Outcome], value: Callable[[Outcome], float]) -> float:
    return sum(each.probability * value(each) for each in found)


def stake(interval: Interval, density: Sequence[float]) -> float:
    """The mean of a density that is constant in cells, over the interval."""
    total = 0.0
    for cell, height in enumerate(density):
        low = max(interval.above, cell / CELLS)
        high = min(interval.above + interval.mass, (cell + 1) / CELLS)
        total += height * max(0.0, high - low)
    return total / interval.mass


def on_output(found: Outcome) -> float:
    """Wealth after betting on every committed token, at stakes that follow the place and the token before."""
    wealth = 1.0
    for i, interval in enumerate(found.seen.output):
        wealth *= stake(interval, STAKES[(i + (found.tokens[i - 1] if i else 0)) % len(STAKES)])
    return wealth


def on_excess(found: Outcome) -> float:
    wealth = 1.0
    for i, value in enumerate(found.seen.excess):
        wealth *= 1 + (0.7 if i and found.tokens[i - 1] == 1 else -0.4) * value
    return wealth


@pytest.mark.parametrize("gamma", [0, 1, 2])
@pytest.mark.parametrize(("rule", "law"), RULES)
def test_no_bet_is_expected_to_win(rule: Rule, law: ModuleType, gamma: int) -> None:
    for seed in range(4):
        found = list(outcomes(rule, law, seed, gamma))
        assert mean(iter(found), lambda _: 1.0) == pytest.approx(1.0, abs=1e-12)
        assert mean(iter(found), lambda o: o.surplus) == pytest.approx(0.0, abs=1e-12)
        assert mean(iter(found), on_output) == pytest.approx(1.0, abs=1e-12)
        assert mean(iter(found), on_excess) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize(("rule", "law"), RULES)
def test_nor_is_one_on_an_output_that_a_stop_cuts(rule: Rule, law: ModuleType) -> None:
    """Nothing behind token 0 is emitted."""

    def cut(found: Outcome) -> Outcome:
        emitted = found.tokens.index(0) + 1 if 0 in found.tokens else len(found.tokens)
        seen = Seen(found.seen.output[:emitted], found.seen.excess[:emitted])
        return Outcome(found.probability, found.proposals, 0, found.tokens[:emitted], 0.0, seen, [])

    found = [cut(each) for each in outcomes(rule, law, 5)]
    assert mean(iter(found), on_output) == pytest.approx(1.0, abs=1e-12)
    assert mean(iter(found), on_excess) == pytest.approx(1.0, abs=1e-12)


def test_the_token_rules_expectation_counts_positions_reached_alone() -> None:
    """Summed over the whole block it is too much."""
    found = outcomes(Rule.TOKEN, token_rule, 1)
    assert mean(found, lambda o: o.accepted - sum(o.overlaps)) < -0.05


@pytest.mark.parametrize(("rule", "lenience"), [(Rule.LENIENT, 0.6), (Rule.TYPICAL, 0.3)])
def test_a_lossy_rules_expectation_is_of_the_mass_it_keeps(rule: Rule, lenience: float) -> None:
    """That of min(p, q) at the positions reached is too little."""
    law = Lossy(SamplingParams(rule=rule, lenience=lenience))
    off = 0.0
    for seed in range(4):
        found = list(outcomes(rule, law, seed))
        assert mean(iter(found), lambda _: 1.0) == pytest.approx(1.0, abs=1e-12)
        assert mean(iter(found), lambda o: o.surplus) == pytest.approx(0.0, abs=1e-12)
        off = max(off, mean(iter(found), lambda o: o.accepted - sum(o.overlaps[: o.accepted + 1])))
    assert off > 0.02


def test_stakes_that_read_what_a_block_threw_away_win_under_the_block_rule() -> None:
    """Hence the rule that bets read committed tokens alone: a thrown-away proposal knows something of the verdict."""

    def reading(found: Outcome) -> float:
        kept = found.tokens == [*found.proposals[: found.accepted], found.tokens[-1]]
        assert kept
        wealth = 1.0
        for value in found.seen.excess:
            wealth *= 1 + (0.9 if found.proposals[-1] == 0 else -0.9) * value
        return wealth

    assert any(abs(mean(outcomes(Rule.BLOCK, block_rule, seed), reading) - 1) > 1e-3 for seed in range(4))


@pytest.mark.parametrize(("rule", "law"), RULES)
def test_a_target_that_draws_from_p_after_a_rejection_loses_the_bet_on_the_excess(rule: Rule, law: ModuleType) -> None:
    first = mean(outcomes(rule, law, 3, resample=True), lambda o: o.seen.excess[0])
    assert first < -0.01


def test_the_transform_of_a_token_that_was_drawn_is_uniform() -> None:
    """For every form of q, ties among them: any density has mean 1 over the tokens that can be drawn."""
    counts = np.array([4, 1, 4, 4, 2, 1])
    masses = (counts / 16).astype(np.float32)
    ids = np.array([1, 2, 5, 7, 8, 9])
    forms = [Lattice(4, ids, counts), Sparse(ids, masses), dense(torch.from_numpy(masses)[None])[0], OneHot(3)]
    for q in forms:
        probabilities = dict(zip(range(6) if q is forms[2] else ids, counts / 16, strict=True))
        if q is forms[3]:
            probabilities = {3: 1.0}
        for density in STAKES:
            total = sum(share * stake(proposed(q, int(x)), density.tolist()) for x, share in probabilities.items())
            assert total == pytest.approx(1.0, abs=1e-12)
        for token in (-1, 0 if q is not forms[2] else 6, 100):
            assert proposed(q, token) == Interval(1.0, 0.0)
