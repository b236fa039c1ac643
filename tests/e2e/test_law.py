"""The output law through the real stack is the target's: 20,000 continuations a configuration, G-tests, Holm at 1e-4.

Sample size and power: with 20,000 samples and 250 cells the joint test of V = 8 finds a total variation of
0.05 with probability 0.99 even in the direction that is hardest to see, and the marginals of V = 32 one of 0.035
(`test_power`). Wrong rules are far beyond that: the same test rejects each of them at p < 1e-6 after a quarter of the
samples.

Seeds are fixed, so a run is repeatable and what passes once passes always, as long as sampling isn't changed.
"""

from __future__ import annotations

import time

import pytest

from draftproof.sampling.params import Rule
from draftproof.testing.law import target_law
from draftproof.testing.statistics import marginal
from tests.e2e.conftest import Models
from tests.e2e.family import (
    ALPHA,
    CAUGHT,
    DRAFTS,
    FAMILY,
    FILTERS,
    LENGTH,
    P_VALUES,
    PROMPT,
    RULES,
    TEMPERATURES,
    TOTAL,
    TREES,
    Configuration,
    Law,
    judge,
    sample,
    smallest_distance,
)
from tests.e2e.processes import Launcher, Running

NORMAL = ("1.3-penalties-good-sparse", "1.0-top-k-garbage-lattice", "0.7-none-ngram-one-hot")
WRONG_TOTAL = TOTAL // 4
SERVING = ("--slots", "64", "--max-context", "64")
TARGET = (*SERVING, "--queue-limit", "1024", "--max-batch-tokens", "4096")


class Laboratory:
    """One target and one draft at a time, kept while the next configuration needs the same."""

    def __init__(self, launcher: Launcher, models: Models) -> None:
        self.launcher = launcher
        self._models = models
        self._laws: dict[Configuration, Law] = {}
        self._targets: dict[tuple[object, ...], Running] = {}
        self._drafts: dict[tuple[object, ...], Running] = {}

    def pair(
        self, cell: Configuration, target_rule: str | None = None, draft_rule: str | None = None
    ) -> tuple[Running, Running]:
        """Target and draft of a configuration."""
        key: tuple[object, ...] = (cell.vocab_size, target_rule)
        drafts = (*key, draft_rule, *cell.drafter, cell.draft)
        if drafts not in self._drafts:
            self._stop(self._drafts)
            if key not in self._targets:
                self._stop(self._targets)
                model = self._models.target(cell.vocab_size)
                self._targets[key] = self.launcher.target(model, *TARGET, rule=target_rule)
            folder = (
                self._models.target(cell.vocab_size)
                if cell.draft == "ngram"
                else self._models.draft(cell.vocab_size, cell.draft)
            )
            self._drafts[drafts] = self.launcher.draft(
                self._targets[key], folder, *SERVING, *cell.drafter, rule=draft_rule
            )
        return self._targets[key], self._drafts[drafts]

    def law(self, cell: Configuration) -> Law:
        """The exact law of a configuration's first tokens, by plain transformers in float64."""
        if cell not in self._laws:
            self._laws[cell] = target_law(self._models.target(cell.vocab_size), PROMPT, cell.sampling, LENGTH)
        return self._laws[cell]

    async def p_values(
        self,
        cell: Configuration,
        target_rule: str | None = None,
        draft_rule: str | None = None,
        total: int = TOTAL,
        seed: int = 0,
    ) -> list[float]:
        """Samples and judges."""
        _, draft = self.pair(cell, target_rule, draft_rule)
        began = time.monotonic()
        counts = await sample(draft.address, cell.sampling, total, seed)
        seconds = time.monotonic() - began
        tests = judge(counts, self.law(cell), cell.vocab_size)
        p_values = [test.p_value for test in tests]
        print(f"\n{cell} {target_rule or ''} {draft_rule or ''}: p = {', '.join(f'{p:.3g}' for p in p_values)},")
        print(f"  {[test.degrees + 1 for test in tests]} cells, {total / seconds:.0f} requests/s, {seconds:.0f} s")
        return p_values

    @staticmethod
    def _stop(running: dict[tuple[object, ...], Running]) -> None:
        for process in running.values():
            process.stop()
        running.clear()


@pytest.fixture(scope="module")
def lab(shared_launcher: Launcher, models: Models) -> Laboratory:
    """Processes that the tests share."""
    return Laboratory(shared_launcher, models)


def is_normal(cell: Configuration) -> bool:
    """Whether a configuration belongs to every run, not to `make exact` alone."""
    return str(cell).startswith(NORMAL)


CELLS = [
    pytest.param(
        cell,
        1_000_000 * (index + 1),
        id=str(cell),
        marks=[pytest.mark.timeout(1200)] if is_normal(cell) else [pytest.mark.timeout(1200), pytest.mark.exact_family],
    )
    for index, cell in enumerate([*FAMILY, *TREES])
]


@pytest.mark.parametrize(("cell", "seed"), CELLS)
async def test_the_law_is_the_targets(lab: Laboratory, cell: Configuration, seed: int) -> None:
    p_values = await lab.p_values(cell, seed=seed)
    assert min(p_values) > ALPHA / P_VALUES


def test_the_family_covers_every_pair() -> None:
    factors = [(c.temperature, c.filter, c.draft, c.encoding, c.rule) for c in FAMILY]
    models = [row for row in factors if row[2] != "ngram"]
    lookups = [row for row in factors if row[2] == "ngram"]
    for a in range(5):
        for b in range(a):
            values = {row[a] for row in models}, {row[b] for row in models}
            assert len({(row[a], row[b]) for row in models}) == len(values[0]) * len(values[1])
    assert {row[0] for row in lookups} == set(TEMPERATURES)
    assert {row[1] for row in lookups} == set(FILTERS)
    assert {(c.draft, c.gamma) for c in FAMILY} >= {(d, g) for d in DRAFTS for g in (1, 2, 3)}
    assert {(c.rule, c.gamma) for c in FAMILY} == {(r, g) for r in RULES for g in (1, 2, 3)}
    assert {(c.vocab_size, c.gamma) for c in FAMILY} == {(v, g) for v in (8, 32) for g in (1, 2, 3)}
    assert sum(map(is_normal, FAMILY)) == len(NORMAL)


@pytest.mark.parametrize("vocab_size", [8, 32])
def test_power(lab: Laboratory, vocab_size: int) -> None:
    """The docstring's numbers, on the unfiltered law: it has the most cells, so it has the least power."""
    cell = Configuration(1.3, "none", "bad", "lattice", vocab_size, 2)
    law = lab.law(cell)
    if vocab_size == 8:
        assert smallest_distance(law, TOTAL) < 0.05
        return
    for position in range(LENGTH):
        tokens = {(-1 if t is None else t,): mass for t, mass in marginal(law, position).items()}
        assert smallest_distance(tokens, TOTAL) < 0.035


PLAIN = Configuration(1.0, "none", "bad", "lattice", 8, 2)
HOT_PLAIN = Configuration(1.3, "none", "garbage", "lattice", 8, 2)
PENALISED = Configuration(0.7, "penalties", "good", "lattice", 8, 3)
BRANCHING = TREES[0]
TRUNCATED = Configuration(1.0, "top-k", "garbage", "sparse", 8, 2, Rule.TOKEN)


@pytest.mark.exact_family
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("cell", "target_rule", "draft_rule"),
    [
        pytest.param(PLAIN, "resample_from_p", None, id="resample-from-p"),
        pytest.param(PLAIN, "absolute_residual", None, id="absolute-residual"),
        pytest.param(PLAIN, "unnormalised_residual", None, id="unnormalised-residual"),
        pytest.param(PENALISED, "penalties_of_the_prefix", None, id="penalties-once-a-block"),
        pytest.param(TRUNCATED, "at_most_with_atom", None, id="at-most"),
        pytest.param(PLAIN, "unchecked_draws", "drawn_hotter", id="q-at-another-temperature"),
        pytest.param(PLAIN, None, "unlikely_dropped", id="unlikely-drafts-dropped"),
        pytest.param(PLAIN, "dropped_mismatches", "drawn_hotter", id="mismatch-dropped"),
        pytest.param(BRANCHING, "siblings_by_whole_q", None, id="siblings-by-whole-q"),
    ],
)
async def test_a_wrong_rule_is_caught(
    lab: Laboratory, cell: Configuration, target_rule: str | None, draft_rule: str | None
) -> None:
    assert min(await lab.p_values(cell, target_rule, draft_rule, WRONG_TOTAL)) < CAUGHT


@pytest.mark.exact_family
@pytest.mark.timeout(1200)
async def test_the_strict_comparison_survives_a_generator_that_often_gives_zero(lab: Laboratory) -> None:
    """The counterpart of `at-most`: what is caught there is the comparison, not the generator."""
    assert min(await lab.p_values(TRUNCATED, "strict_with_atom")) > ALPHA / P_VALUES


@pytest.mark.exact_family
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("draft_rule", ["drawn_hotter", "swapped_tokens", "off_by_one"])
async def test_a_cheating_draft_costs_speed_but_not_the_law(lab: Laboratory, draft_rule: str) -> None:
    assert min(await lab.p_values(PLAIN, None, draft_rule)) > ALPHA / P_VALUES
    target, _ = lab.pair(PLAIN, None, draft_rule)
    assert target.metric("refused_proposals_total", kind="draw_mismatch") > TOTAL / 10


async def test_a_mismatch_ends_the_block_at_its_first_differing_draw(lab: Laboratory) -> None:
    """Off by one, every draw differs: each block is refused at its first proposal and verified up to it."""
    target, draft = lab.pair(HOT_PLAIN, None, "off_by_one")
    names = ("refused_proposals_total", "spec_decode_num_drafts_total", "spec_decode_num_draft_tokens_total")
    labels: list[dict[str, str]] = [{"kind": "draw_mismatch"}, {"rule": "block"}, {"rule": "block"}]
    before = [target.metric(name, **label) for name, label in zip(names, labels, strict=True)]
    await sample(draft.address, HOT_PLAIN.sampling, 200, seed=0)
    after = [target.metric(name, **label) for name, label in zip(names, labels, strict=True)]
    refused, blocks, tested = (b - a for a, b in zip(before, after, strict=True))
    assert refused == blocks == tested > 200
