"""The round as the server runs it: equal to `verify` on the pipeline's p, and no round touches another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from draftproof.sampling.draft_q import Dense, DraftQ, Lattice, OneHot, Sparse, draw, support
from draftproof.sampling.inverse_cdf import inverse_cdf
from draftproof.sampling.params import Rule, SamplingParams
from draftproof.sampling.pipeline import History, distribution
from draftproof.sampling.rng import Draw, Purpose, derive_key, random_words, uniforms
from draftproof.verification import block_rule, evidence, token_rule
from draftproof.verification import round as round_module
from draftproof.verification.drafts import row_totals
from draftproof.verification.round import RoundInput, RoundResult, verify_rounds
from draftproof.verification.token_rule import Uniforms

VOCAB = 12

RULES = [
    {"rule": Rule.TOKEN},
    {"rule": Rule.BLOCK},
    {"rule": Rule.LENIENT, "lenience": 0.6},
    {"rule": Rule.TYPICAL, "lenience": 0.3},
    {"rule": Rule.COUPLED},
]
TOKEN, BLOCK, LENIENT, TYPICAL, COUPLED = RULES

PARAMS = [
    SamplingParams(),
    SamplingParams(temperature=0.7, top_k=5),
    SamplingParams(temperature=1.3, top_p=0.8),
    SamplingParams(min_p=0.1, logit_bias={3: 2.0}),
    SamplingParams(repetition_penalty=1.5, presence_penalty=0.5, frequency_penalty=0.4),
    SamplingParams(temperature=0.0),
]


def make_q(row: np.ndarray, encoding: str) -> DraftQ:
    match encoding:
        case "dense":
            return Dense((row / row.sum()).astype(np.float32))
        case "sparse":
            ids = np.sort(np.argsort(-row)[: VOCAB // 2])
            return Sparse(ids, (row[ids] / row[ids].sum()).astype(np.float32))
        case "lattice":
            counts = np.floor(row / row.sum() * 2**12).astype(np.int64)
            counts[row.argmax()] += 2**12 - counts.sum()
            ids = np.flatnonzero(counts)
            return Lattice(12, ids, counts[ids])
    return OneHot(int(row.argmax()))


def make_rounds(
    count: int, seed: int, vocab: int = VOCAB, rules: Sequence[Mapping[str, Any]] = RULES
) -> tuple[Tensor, list[RoundInput]]:
    """Rounds that differ in everything: gamma 0..4, settings, rules, encodings; honest draws."""
    rng = np.random.default_rng(seed)
    rounds = []
    for b in range(count):
        output = rng.integers(vocab, size=rng.integers(6)).tolist()
        key = derive_key(seed, [b], 0, 0)
        encodings = ["dense", "sparse", "lattice", "one_hot"] if b % 3 else ["sparse", "lattice"]
        qs = [make_q(rng.gamma(0.7, size=vocab) + 1e-3, str(rng.choice(encodings))) for _ in range(rng.integers(5))]
        start = 3 + len(output)
        draws = [Draw(key, start, i, Purpose.DRAFT) for i in range(len(qs))]
        words = random_words(draws)
        rounds.append(
            RoundInput(
                params=replace(PARAMS[b % len(PARAMS)], **rules[b % len(rules)]),
                prompt_ids=rng.integers(vocab, size=3).tolist(),
                output_ids=output,
                key=key,
                block_start=start,
                tokens=[draw(q, int(word)) for q, word in zip(qs, words, strict=True)],
                qs=qs if rules[b % len(rules)] is not COUPLED else [],
            )
        )
    rows = sum(len(r.tokens) + 1 for r in rounds)
    return torch.from_numpy(rng.normal(size=(rows, vocab)) * 1.5).float(), rounds


def rows_of(logits: Tensor, rounds: list[RoundInput]) -> list[Tensor]:
    return list(logits.split([len(r.tokens) + 1 for r in rounds]))


def p_of(logits: Tensor, asked: RoundInput) -> Tensor:
    """p at each position, by the pipeline one row at a time, normalised in float64: [G+1, V]."""
    rows = [
        distribution(row, asked.params, History(asked.prompt_ids, [*asked.output_ids, *asked.tokens[:i]])).double()
        for i, row in enumerate(logits)
    ]
    return torch.stack([row / row.sum() for row in rows])


def q_of(asked: RoundInput, vocab: int = VOCAB) -> Tensor:
    q = torch.zeros((len(asked.qs), vocab), dtype=torch.float64)
    for i, each in enumerate(asked.qs):
        ids, masses = support(each)
        q[i, torch.from_numpy(ids)] = torch.from_numpy(masses)
    return q


def token_fields(results: list[RoundResult]) -> list[tuple[int, int, bool]]:
    return [(r.accepted, r.next_id, r.finite) for r in results]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("rule", [token_rule, block_rule])
def test_a_round_equals_verify_on_the_pipelines_p(rule: ModuleType, seed: int) -> None:
    logits, rounds = make_rounds(24, seed, rules=[TOKEN if rule is token_rule else BLOCK])
    for asked, rows, result in zip(rounds, rows_of(logits, rounds), verify_rounds(logits, rounds), strict=True):
        p, q, gamma = p_of(rows, asked), q_of(asked), len(asked.tokens)
        draws = [Draw(asked.key, asked.block_start, i, Purpose.ACCEPT) for i in range(gamma)]
        accept = torch.from_numpy(uniforms(draws))[None]
        following = [Draw(asked.key, asked.block_start, result.accepted, Purpose.NEXT)]
        proposals = torch.tensor([asked.tokens], dtype=torch.int64).view(1, gamma)
        accepted, chosen = rule.verify(
            p[None],
            q[None],
            proposals,
            torch.tensor([gamma]),
            Uniforms(accept, torch.from_numpy(uniforms(following))),
        )
        assert (result.accepted, result.next_id) == (accepted.item(), chosen.item())
        assert result.examined == gamma
        if rule is token_rule:
            reached = min(result.accepted + 1, gamma)
            overlaps = torch.minimum(p[:reached], q[:reached]).sum(-1)
        else:
            overlaps = block_rule.expected_acceptance(p[None], q[None], proposals, torch.tensor([gamma]))[0]
        assert result.overlaps == pytest.approx(overlaps.tolist(), abs=1e-12)
        assert result.losses == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_a_round_is_the_same_alone_and_in_company(dtype: torch.dtype) -> None:
    logits, rounds = make_rounds(24, 100)
    logits = logits.to(dtype)
    asked = [replace(r, logprobs=2, trace_top=0) for r in rounds]
    together = verify_rounds(logits, asked)
    alone = [verify_rounds(rows, [r])[0] for r, rows in zip(asked, rows_of(logits, rounds), strict=True)]
    backwards = verify_rounds(torch.cat(rows_of(logits, rounds)[::-1]), asked[::-1])[::-1]
    for a, b, c in zip(together, alone, backwards, strict=True):
        for other in (b, c):
            assert replace(a, records=[]) == replace(other, records=[])
            for ours, theirs in zip(a.records, other.records, strict=True):
                np.testing.assert_equal(ours.p.masses, theirs.p.masses)
                assert (ours.p_proposed, ours.q_proposed) == (theirs.p_proposed, theirs.q_proposed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_logits_that_may_be_overwritten_give_the_same_verdicts(dtype: torch.dtype) -> None:
    logits, rounds = make_rounds(60, 101)
    logits = logits.to(dtype)
    for asked in (rounds, [replace(r, logprobs=2) for r in rounds]):
        kept = logits.clone()
        given = verify_rounds(kept, asked, owned=True)
        assert torch.equal(kept, logits) == (dtype != torch.float32 or asked is not rounds)
        assert given == verify_rounds(logits, asked)


def test_row_totals_do_not_depend_on_the_rows_beside_them() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        rows = torch.rand((7, 200_003))
        alone = torch.cat([row_totals(row[None]) for row in rows])
        assert torch.equal(row_totals(rows), alone)
    finally:
        torch.set_num_threads(threads)


def test_logits_are_left_alone() -> None:
    logits, rounds = make_rounds(12, 5)
    before = logits.clone()
    verify_rounds(logits, [replace(r, logprobs=3, trace_top=0) for r in rounds])
    assert torch.equal(logits, before)


def test_a_dense_draft_that_is_the_target_is_always_accepted() -> None:
    logits, _ = make_rounds(200, 6)
    logits = logits[:400]
    rounds = []
    for b, p in enumerate(distribution(logits, SamplingParams())[::2]):
        q = Dense(p.numpy())
        key = derive_key(1, [b], 0, 0)
        word = int(random_words([Draw(key, 1, 0, Purpose.DRAFT)])[0])
        rounds.append(
            RoundInput(
                params=SamplingParams(),
                prompt_ids=[0],
                output_ids=[],
                key=key,
                block_start=1,
                tokens=[draw(q, word)],
                qs=[q],
            )
        )
    results = verify_rounds(logits, rounds)
    assert all(r.accepted == 1 for r in results)
    assert all(r.overlaps == pytest.approx([1.0], abs=1e-12) for r in results)


# Through the server's own function, over every uniform of a grid.


# Sixteenths for which every threshold and residual of the rule lies on the grid, too.
TABLES: dict[str, tuple[ModuleType, list[list[int]], list[list[int]]]] = {
    "token": (token_rule, [[6, 4, 4, 2], [2, 6, 6, 2], [3, 3, 2, 8]], [[4, 8, 2, 2], [0, 8, 4, 4]]),
    "block": (block_rule, [[6, 6, 2, 2], [4, 8, 4, 0], [3, 3, 2, 8]], [[4, 8, 0, 4], [1, 8, 1, 6]]),
}


@pytest.mark.parametrize("encoding", ["lattice", "sparse", "dense"])
@pytest.mark.parametrize("name", TABLES)
def test_grid_frequencies_of_the_round_equal_the_probabilities(
    name: str, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = 16
    rule, masses_p, masses_q = TABLES[name]
    p = torch.tensor(masses_p).float() / grid
    counts = np.array(masses_q)
    proposals = [1, 1]
    qs: list[DraftQ] = []
    for row in counts:
        ids = np.flatnonzero(row)
        masses = (row / grid).astype(np.float32)
        qs.append(
            {"lattice": Lattice(4, ids, row[ids]), "sparse": Sparse(ids, masses[ids]), "dense": Dense(masses)}[encoding]
        )
    cells = list(product(range(grid), repeat=3))
    numbered = {i.to_bytes(32, "little"): cell for i, cell in enumerate(cells)}

    def grid_uniforms(draws: list[Draw]) -> np.ndarray:
        return np.array([numbered[d.key][2 if d.purpose is Purpose.NEXT else min(d.offset, 1)] / grid for d in draws])

    monkeypatch.setattr(round_module, "uniforms", grid_uniforms)
    monkeypatch.setattr(round_module, "distributions", lambda logits, params, histories: logits)
    rounds = [
        RoundInput(
            params=SamplingParams(rule=Rule(name)),
            prompt_ids=[0],
            output_ids=[],
            key=key,
            block_start=1,
            tokens=proposals,
            qs=qs,
        )
        for key in numbered
    ]
    frequencies = torch.zeros((3, 4), dtype=torch.float64)
    for result in verify_rounds(p.repeat(len(cells), 1), rounds):
        frequencies[result.accepted, result.next_id] += 1 / len(cells)
    law = rule.outcome_law(
        p[None], torch.from_numpy(counts / grid)[None], torch.tensor([proposals]), torch.tensor([2])
    )[0]
    assert torch.equal(frequencies, law)


# History, numbers that aren't, reading along.


def test_penalties_see_the_prefix_and_the_proposals_before_each_position() -> None:
    params = SamplingParams(repetition_penalty=1.7, presence_penalty=0.9, frequency_penalty=0.6)
    logits = torch.randn((4, VOCAB), generator=torch.Generator().manual_seed(0))
    logits[[0, 1, 2], [5, 3, 5]] += 6.0
    asked = RoundInput(
        params=params,
        prompt_ids=[1, 2],
        output_ids=[3, 3],
        key=bytes(32),
        block_start=4,
        tokens=[5, 3, 5],
        qs=[OneHot(5), OneHot(3), OneHot(5)],
        trace_top=0,
    )
    # With some key every proposal is accepted, so that all four positions are recorded.
    keys = (derive_key(seed, [0], 0, 0) for seed in range(1000))
    results = (verify_rounds(logits, [replace(asked, key=key)])[0] for key in keys)
    full = next(r for r in results if r.accepted == 3)
    for i, record in enumerate(full.records):
        p = distribution(logits[i], params, History([1, 2], [3, 3, *[5, 3, 5][:i]])).double()
        np.testing.assert_allclose(record.p.masses, (p / p.sum()).float().numpy(), atol=1e-7)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_numbers_that_are_none_fail_only_their_own_round(bad: float, temperature: float) -> None:
    logits, rounds = make_rounds(12, 7)
    victim = 4
    rounds[victim] = replace(rounds[victim], params=SamplingParams(temperature=temperature))
    good = verify_rounds(logits, rounds)
    first = sum(len(r.tokens) + 1 for r in rounds[:victim])
    logits[first, 3] = bad
    results = verify_rounds(logits, [replace(r, logprobs=1, trace_top=2) for r in rounds])
    assert not results[victim].finite
    assert results[victim].accepted == 0
    assert results[victim].overlaps == []
    del results[victim], good[victim]
    assert token_fields(results) == token_fields(good)


def test_only_rows_that_the_verdict_rests_on_can_fail_it() -> None:
    """What the target makes of a rejected proposal is nobody's concern, garbage or not, where that was not asked."""
    logits, rounds = make_rounds(60, 8, rules=[rule for rule in RULES if rule is not BLOCK])
    good = verify_rounds(logits, rounds)
    for asked, rows, result in zip(rounds, rows_of(logits, rounds), good, strict=True):
        rows[result.accepted + 1 :] = float("nan")
        assert verify_rounds(rows, [asked])[0] == result
        rows[result.accepted] = -math.inf
        assert not verify_rounds(rows, [asked])[0].finite


def test_a_row_without_numbers_ends_a_block_before_it() -> None:
    """Under the block rule later rows have a say; one that holds nothing leaves the verdict to those before it."""
    logits, rounds = make_rounds(60, 8, rules=[BLOCK])
    shortened = 0
    for asked, rows in zip(rounds, rows_of(logits, rounds), strict=True):
        for cut in range(len(asked.tokens)):
            shorter = verify_rounds(rows[: cut + 1], [replace(asked, tokens=asked.tokens[:cut], qs=asked.qs[:cut])])[0]
            holed = rows.clone()
            holed[cut] = float("nan")
            result = verify_rounds(holed, [asked])[0]
            assert result.finite == (shorter.accepted < cut)
            if result.finite:
                assert result == replace(shorter, examined=len(asked.tokens))
                shortened += 1
    assert shortened > 10


# Lossy and coupled, against plain loops.


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("rule", [LENIENT, TYPICAL])
def test_a_lossy_round_keeps_what_its_rule_says_and_says_what_that_costs(rule: Mapping[str, Any], seed: int) -> None:
    logits, rounds = make_rounds(24, seed, rules=[rule])
    rejected = 0
    for asked, rows, result in zip(rounds, rows_of(logits, rounds), verify_rounds(logits, rounds), strict=True):
        p, q = p_of(rows, asked), q_of(asked)
        lenience = rule["lenience"]
        kept, losses, accepted = [], [], 0
        for i, x in enumerate(asked.tokens):
            if rule is LENIENT:
                m = torch.minimum(q[i], p[i] / lenience)
            else:
                entropy = -sum(mass * math.log(mass) for mass in p[i].tolist() if mass > 0)
                m = torch.where(p[i] > min(lenience, math.sqrt(lenience) * math.exp(-entropy)), q[i], 0.0)
            kept.append(m.sum().item())
            losses.append((m - p[i]).clamp(min=0).sum().item())
            u = uniforms([Draw(asked.key, asked.block_start, i, Purpose.ACCEPT)])[0]
            weights = (p[i] - m).clamp(min=0)
            if u * q[i, x].item() >= m[x].item():
                break
            accepted += 1
        else:
            weights = p[len(asked.tokens)]
        rejected += accepted < len(asked.tokens)
        u = torch.from_numpy(uniforms([Draw(asked.key, asked.block_start, accepted, Purpose.NEXT)]))
        assert (result.accepted, result.next_id) == (accepted, inverse_cdf(weights[None], u).item())
        assert result.overlaps == pytest.approx(kept, abs=1e-9)
        assert result.losses == pytest.approx(losses, abs=1e-9)
    assert rejected > 3


def test_a_coupled_round_says_what_the_target_alone_would() -> None:
    logits, rounds = make_rounds(60, 9, rules=[COUPLED])
    agreed = 0
    for asked, rows, result in zip(rounds, rows_of(logits, rounds), verify_rounds(logits, rounds), strict=True):
        alone, output = [], list(asked.output_ids)
        for i, row in enumerate(rows):
            start = asked.block_start + i
            step = verify_rounds(row[None], [replace(asked, output_ids=output, block_start=start, tokens=())])[0]
            alone.append(step.next_id)
            if i == len(asked.tokens) or step.next_id != asked.tokens[i]:
                break
            output.append(step.next_id)
        assert [*asked.tokens[: result.accepted], result.next_id] == alone
        assert (sum(result.overlaps), result.losses) == (result.accepted, [])
        agreed += result.accepted
    assert agreed > 5


def test_asking_for_logprobs_and_trace_changes_no_token() -> None:
    logits, rounds = make_rounds(24, 9)
    plain = verify_rounds(logits, rounds)
    for top in (0, 3, 100):
        asked = [replace(r, logprobs=min(top, 20), trace_top=top) if b % 2 else r for b, r in enumerate(rounds)]
        results = verify_rounds(logits, asked)
        assert token_fields(results) == token_fields(plain)
        assert [r.overlaps for r in results] == [r.overlaps for r in plain]
        assert [bool(r.records) for r in results] == [b % 2 == 1 for b in range(24)]
        assert [bool(r.logprobs) for r in results] == [b % 2 == 1 for b in range(24)]


def test_logprobs_are_the_targets_own() -> None:
    logits, rounds = make_rounds(24, 10)
    results = verify_rounds(logits, [replace(r, logprobs=4) for r in rounds])
    for asked, rows, result in zip(rounds, rows_of(logits, rounds), results, strict=True):
        committed = [*asked.tokens[: result.accepted], result.next_id]
        p, raw = p_of(rows, asked), rows.double().log_softmax(dim=-1)
        assert len(result.logprobs) == len(committed)
        for i, (token, entry) in enumerate(zip(committed, result.logprobs, strict=True)):
            assert entry.logprob == pytest.approx(p[i, token].log().item(), abs=1e-5)
            assert entry.raw_logprob == pytest.approx(raw[i, token].item(), abs=1e-9)
            order = sorted(range(VOCAB), key=lambda x, row=p[i]: (-row[x].item(), x))
            expected = [x for x in order if p[i, x] > 0][:4]
            assert list(entry.top_ids) == expected
            assert entry.top_logprobs == pytest.approx(p[i, expected].log().tolist(), abs=1e-5)
            assert entry.top_raw_logprobs == pytest.approx(raw[i, expected].tolist(), abs=1e-9)


def test_no_alternatives_when_none_are_asked_for() -> None:
    logits, rounds = make_rounds(3, 11)
    for result in verify_rounds(logits, [replace(r, logprobs=0) for r in rounds]):
        assert all(entry.top_ids == () for entry in result.logprobs)


def test_the_trace_shows_what_was_compared() -> None:
    logits, rounds = make_rounds(24, 12)
    results = verify_rounds(logits, [replace(r, trace_top=0) for r in rounds])
    short = verify_rounds(logits, [replace(r, trace_top=2) for r in rounds])
    for asked, rows, result, brief in zip(rounds, rows_of(logits, rounds), results, short, strict=True):
        p, q = p_of(rows, asked), q_of(asked)
        assert len(result.records) == result.accepted + 1
        for i, (record, top) in enumerate(zip(result.records, brief.records, strict=True)):
            assert (record.position, record.block_start) == (asked.block_start + i, asked.block_start)
            assert record.accepted == (i < result.accepted)
            coupled = asked.params.rule is Rule.COUPLED
            assert (record.draw_uniform is None) == (record.accepted or coupled)
            np.testing.assert_allclose(record.p.masses, p[i].float().numpy(), rtol=1e-6)
            assert top.p.ids is not None
            np.testing.assert_array_equal(top.p.masses, record.p.masses[top.p.ids])
            if record.proposed_id is None:
                assert i == len(asked.tokens)
                assert record.q is None
                assert record.accept_uniform is None
                continue
            assert record.proposed_id == asked.tokens[i]
            if coupled:
                assert (record.q, record.accept_uniform, record.accept_probability) == (None, None, None)
                continue
            assert record.accept_uniform is not None
            assert record.q is not None
            np.testing.assert_allclose(record.q.masses, q[i].numpy(), rtol=1e-6)
            assert record.p_proposed == pytest.approx(p[i, record.proposed_id].item(), rel=1e-6)
            assert record.q_proposed == pytest.approx(q[i, record.proposed_id].item(), rel=1e-12)
            assert record.accept_probability is not None
            passed = record.accept_uniform < record.accept_probability
            if asked.params.rule is not Rule.BLOCK or not record.accepted or i + 1 == result.accepted:
                assert record.accepted == passed
            if asked.params.rule is Rule.TOKEN:
                assert passed == (record.accept_uniform * record.q_proposed < record.p_proposed)


@pytest.mark.gpu
def test_cuda_gives_the_cpus_rounds() -> None:
    logits, rounds = make_rounds(48, 13)
    asked = [replace(r, logprobs=2, trace_top=0) for r in rounds]
    assert token_fields(verify_rounds(logits.cuda(), asked)) == token_fields(verify_rounds(logits, asked))


@pytest.mark.parametrize("seed", range(3))
def test_what_the_audit_sees_is_what_p_and_q_say(seed: int) -> None:
    """Ranks under p and the excess over q / rho, against plain sums; and to ask for it changes no verdict."""
    logits, rounds = make_rounds(40, seed)
    asked = [replace(r, audited=b % 4 != 3) for b, r in enumerate(rounds)]
    results = verify_rounds(logits, asked)
    assert token_fields(results) == token_fields(verify_rounds(logits, rounds))
    for result, r, rows in zip(results, asked, rows_of(logits, rounds), strict=True):
        if not r.audited or r.params.rule.lossy:
            assert result.seen is None
            continue
        assert result.seen is not None
        p, q = p_of(rows, r), q_of(r)
        committed = [*r.tokens[: result.accepted], result.next_id]
        for row, token, found in zip(p, committed, result.seen.output, strict=False):
            assert found.above == pytest.approx(row[row > row[token]].sum().item(), abs=1e-6)
            assert found.mass == pytest.approx(row[row == row[token]].sum().item(), abs=1e-6)
        assert len(result.seen.output) == len(committed)
        rho, excess = 1.0, []
        for row, against, token in zip(p, q, committed, strict=False):
            more = rho * row > against
            excess.append(float(more[token]) - row[more].sum().item())
            if r.params.rule is Rule.BLOCK and against[token] > 0:
                rho = min(1.0, rho * (row[token] / against[token]).item())
        assert result.seen.excess == pytest.approx(excess if r.params.rule is not Rule.COUPLED else [], abs=1e-6)


@pytest.mark.parametrize("seed", range(2))
def test_what_the_audit_sees_is_the_same_as_accelerators_compute_it(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    logits, rounds = make_rounds(40, seed)
    logits = logits.round(decimals=1)
    asked = [replace(r, audited=True) for r in rounds]
    here = [r.seen for r in verify_rounds(logits, asked)]
    monkeypatch.setattr(evidence, "row_by_row", evidence.together)
    there = [r.seen for r in verify_rounds(logits, asked)]
    assert [seen is None for seen in here] == [seen is None for seen in there]
    pairs = [(one, other) for one, other in zip(here, there, strict=True) if one is not None and other is not None]
    assert sum(len(one.excess) for one, _ in pairs) > 10
    for one, other in pairs:
        np.testing.assert_allclose(np.array(one.output), np.array(other.output), atol=1e-6)
        assert one.excess == pytest.approx(other.excess, abs=1e-6)
