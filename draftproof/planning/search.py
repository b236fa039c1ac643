"""The best way to run given parts: γ, encoding, drafting ahead, drafts for each target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from draftproof.planning.forecast import Forecast, forecast
from draftproof.planning.setup import Encoding, Setup
from draftproof.planning.simulation import Outcome, simulate

LARGEST_GAMMA = 16
_ENOUGH = 0.97
"""Share of what any number of drafts would give with which fewer are preferred."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to run the cluster.

    Attributes:
        speed_up: tokens a second over those of the targets alone.
    """

    setup: Setup
    forecast: Forecast
    speed_up: float


@dataclass(frozen=True, slots=True)
class Plan:
    """The best way and its neighbours.

    Attributes:
        best: what to run.
        simulated: what a simulation of it shows.
        alone: the same targets without drafts.
        gammas: by γ, all else as in `best`; 0 is the target alone.
        encodings: by encoding, all else as in `best` but γ, which is the best for each.
        drafts: by number of drafts, each at its own best.
    """

    best: Choice
    simulated: Outcome
    alone: Forecast
    gammas: tuple[Choice, ...]
    encodings: tuple[Choice, ...]
    drafts: tuple[Choice, ...]


def plan(
    setup: Setup,
    encodings: Sequence[Encoding],
    *,
    drafts: Sequence[int] = (),
    ahead: Sequence[bool] = (False, True),
    largest: int = LARGEST_GAMMA,
) -> Plan:
    """Looks through all combinations; ties go to the smaller γ and to what is named first.

    Args:
        setup: costs, link, acceptance, streams and targets; its γ, encoding, drafts and `ahead` don't matter.
        encodings: to choose from.
        drafts: numbers of drafts to choose from; empty: up to four a target, but no more than streams.
        ahead: whether to draft ahead.
        largest: most proposals a round.
    """
    alone = forecast(setup.alone())
    counts = drafts or range(max(1, ceil(setup.targets / 4)), min(setup.streams, 4 * setup.targets) + 1)

    def choice(one: Setup) -> Choice:
        # without proposals nobody needs a draft in between
        one = one if one.gamma else one.alone()
        found = forecast(one)
        return Choice(one, found, found.tokens_per_second / alone.tokens_per_second)

    def fastest(candidates: Sequence[Setup]) -> Choice:
        return max(map(choice, candidates), key=lambda one: one.forecast.tokens_per_second)

    def candidates(encoding: Encoding, count: int) -> list[Setup]:
        return [
            replace(setup, gamma=gamma, encoding=encoding, drafts=count, ahead=way)
            for gamma in range(largest + 1)
            for way in (ahead if gamma else (False,))
        ]

    by_count = tuple(fastest([one for e in encodings for one in candidates(e, count)]) for count in counts)
    most = max(one.forecast.tokens_per_second for one in by_count)
    best = next(one for one in by_count if one.forecast.tokens_per_second >= _ENOUGH * most)
    chosen = best.setup
    return Plan(
        best=best,
        simulated=simulate(chosen),
        alone=alone,
        gammas=tuple(choice(replace(chosen, gamma=g, ahead=chosen.ahead and g > 0)) for g in range(largest + 1)),
        encodings=tuple(fastest(candidates(e, chosen.drafts)) for e in encodings),
        drafts=by_count,
    )
