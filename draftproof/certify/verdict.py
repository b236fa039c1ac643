"""One test for each case, all of them planned before anything is sampled and judged together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from draftproof.certify import design
from draftproof.certify.law import Outcome
from draftproof.testing.statistics import GTest, g_test, holm, pooled_cells

Law = Mapping[Outcome, float]


@dataclass(frozen=True, slots=True)
class Planned:
    """A test before its samples.

    Attributes:
        name: of the case.
        law: masses of its outcomes.
        total: samples it takes.
        cells: outcomes after pooling.
        power: chance at least that it finds a total variation of `tv`.
        tv: the total variation asked for.
        findable: the least total variation that it finds with the wanted power.
    """

    name: str
    law: Law
    total: int
    cells: int
    power: float
    tv: float
    findable: float


@dataclass(frozen=True, slots=True)
class Cell:
    """Pooled outcomes, in samples."""

    outcomes: int
    expected: float
    observed: int


@dataclass(frozen=True, slots=True)
class Judged:
    """A test after its samples.

    Attributes:
        failed: whether it falls under Holm's procedure over all tests.
        bound: upper 99 % confidence bound on the total variation over its cells.
        seen: total variation of the counts from the law, noise included.
        noise: what `seen` would be on average if the law holds, about.
        cells: by expected count, ascending; samples that the law forbids are in none.
    """

    planned: Planned
    test: GTest
    failed: bool
    bound: float
    seen: float
    noise: float
    cells: tuple[Cell, ...]


def plan(
    laws: Mapping[str, Law], *, tv: float, alpha: float, power: float, samples: int | None = None
) -> list[Planned]:
    """Sizes every test at the level that Holm's procedure leaves the least fortunate of them.

    Args:
        laws: by case.
        tv: total variation to find.
        alpha: chance at most that any case fails wrongly.
        power: chance at least with which `tv` is to be found in each.
        samples: of each test, in place of what `tv` asks for.
    """
    each = alpha / len(laws)
    found = []
    for name, law in laws.items():
        total = samples or design.samples_for(law, tv, each, power)
        cells = len(pooled_cells(law, total, design.MIN_EXPECTED))
        reached, least = design.power_of(law, total, tv, each), design.findable(law, total, each, power)
        found.append(Planned(name, law, total, cells, reached, tv, least))
    return found


def judge(planned: Sequence[Planned], counts: Sequence[Mapping[Outcome, int]], alpha: float) -> list[Judged]:
    """Judges all tests.

    Args:
        planned: the tests.
        counts: of each test's outcomes; outcomes that its law lacks are impossible.
        alpha: chance at most that any of them fails wrongly.

    Raises:
        ValueError: a test has other samples than were planned.
    """
    tests = []
    for one, seen in zip(planned, counts, strict=True):
        if sum(seen.values()) != one.total:
            raise ValueError(f"{one.name}: {sum(seen.values())} samples, {one.total} were planned")
        tests.append(g_test(seen, one.law, design.MIN_EXPECTED))
    failed = holm([test.p_value for test in tests], alpha)
    return [
        Judged(
            planned=one,
            test=test,
            failed=fell,
            bound=design.tv_bound(test, one.law),
            seen=design.tv_seen(seen, one.law),
            noise=design.tv_noise(one.law, one.total),
            cells=_cells(one, seen),
        )
        for one, test, fell, seen in zip(planned, tests, failed, counts, strict=True)
    ]


def _cells(planned: Planned, counts: Mapping[Outcome, int]) -> tuple[Cell, ...]:
    return tuple(
        Cell(
            len(cell),
            planned.total * sum(planned.law[outcome] for outcome in cell),
            sum(counts.get(outcome, 0) for outcome in cell),
        )
        for cell in pooled_cells(planned.law, planned.total, design.MIN_EXPECTED)
    )
