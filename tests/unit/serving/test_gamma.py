"""The control of γ against a simulated pair: exact times, drawn acceptances."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from draftproof.serving.drafting import Outlook
from draftproof.serving.experience import Experience, Timing
from draftproof.serving.gamma import FixedGamma, GammaControl, GammaLimits

LARGEST = 16
UNAIDED = 64


@dataclass(frozen=True)
class Pair:
    """A draft and a target; times in units of a plain target step."""

    accepts: Callable[[int], float]
    draft: float
    slope: float = 0.03
    noise: float = 0.3
    wire: float = 0.0

    def best(self) -> float:
        """Tokens per second of the best fixed γ."""
        return max(self.rate(gamma) for gamma in range(LARGEST + 1))

    def rate(self, gamma: int) -> float:
        committed, run = 1.0, 1.0
        for i in range(gamma):
            run *= self.accepts(i)
            committed += run
        # at rest next to no round waits for the wire
        wire = self.wire if gamma else 0.0
        return committed / (1.0 + wire + gamma * (self.draft + self.slope))


def control(pair: Experience | None = None) -> GammaControl:
    return GammaControl(GammaLimits(largest=LARGEST, first=4, unaided=UNAIDED), pair or Experience())


def simulate(who: GammaControl | FixedGamma, pair: Pair, tokens: int, luck: random.Random) -> tuple[float, list[int]]:
    """Tokens per second, and the γ of every round."""
    seconds, committed, chosen, unaided = 0.0, 0, [], 0
    while committed < tokens:
        unasked = unaided > 0
        unaided -= unasked
        gamma = 0 if unasked else who.choose()
        if not gamma and not unasked:
            unaided = who.rest(UNAIDED)
        accepted = 0
        while accepted < gamma and luck.random() < pair.accepts(accepted):
            accepted += 1
        drafting = gamma * pair.draft
        trip = (1.0 + gamma * pair.slope) * (1 + pair.noise * luck.uniform(-1, 1))
        wire = pair.wire * (1 + pair.noise * luck.uniform(-1, 1))
        seconds += drafting + trip + (0.0 if unasked else wire)
        committed += accepted + 1
        chosen.append(gamma)
        who.learn(gamma, accepted, drafting, trip, None if unasked else wire)
    return committed / seconds, chosen


GARBAGE = {
    "never right": Pair(lambda i: 0.0, 0.1),
    "never right and as slow as the target": Pair(lambda i: 0.0, 1.0),
    "hardly ever right": Pair(lambda i: 0.05, 0.3),
    "right at a third and too slow": Pair(lambda i: 0.33, 0.6),
    "never right and far away": Pair(lambda i: 0.0, 0.1, wire=1.0),
    "right at a third and too far away": Pair(lambda i: 0.33, 0.05, wire=1.0),
}
GOOD = {
    "good": Pair(lambda i: 0.85, 0.1),
    "fair": Pair(lambda i: 0.6, 0.1),
    "excellent and free": Pair(lambda i: 0.95, 0.05, slope=0.0),
    "dear to verify": Pair(lambda i: 0.9, 0.05, slope=0.2),
    "worse with each offset": Pair(lambda i: 0.9 ** (i + 1), 0.05, slope=0.02),
    "good but slow": Pair(lambda i: 0.8, 0.5),
    "good and far away": Pair(lambda i: 0.85, 0.05, wire=1.0),
}


@pytest.mark.parametrize("name", GARBAGE)
@pytest.mark.parametrize("seed", range(4))
def test_a_useless_draft_costs_less_than_a_twentieth(name: str, seed: int) -> None:
    pair = GARBAGE[name]
    rate, chosen = simulate(control(), pair, 2000, random.Random(seed))
    assert rate > 0.95 * pair.rate(0)
    assert chosen[-200:].count(0) > 190


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("seed", range(4))
def test_a_useful_draft_comes_within_a_tenth_of_the_best_fixed_gamma(name: str, seed: int) -> None:
    pair = GOOD[name]
    rate, _ = simulate(control(), pair, 4000, random.Random(seed))
    assert rate > 0.9 * pair.best()


@pytest.mark.parametrize("seed", range(4))
def test_it_comes_back_when_the_draft_becomes_good_and_goes_when_it_doesn_t(seed: int) -> None:
    luck, who = random.Random(seed), control()
    simulate(who, GARBAGE["never right"], 5000, luck)
    rate, chosen = simulate(who, GOOD["good"], 8000, luck)
    assert next(i for i, gamma in enumerate(chosen) if gamma > 3) < 1000
    assert rate > 0.75 * GOOD["good"].best()
    _, chosen = simulate(who, GARBAGE["never right"], 1000, luck)
    assert chosen.index(0) < 200


def test_sessions_share_what_their_pair_has_shown() -> None:
    shared, luck = Experience(), random.Random(1)
    pair = GARBAGE["never right and as slow as the target"]
    tokens, seconds = 0, 0.0
    for _ in range(40):
        rate, _ = simulate(control(shared), pair, 50, luck)
        tokens += 50
        seconds += 50 / rate
    assert tokens / seconds > 0.95 * pair.rate(0)


def test_many_sessions_probe_no_more_often_than_one() -> None:
    """Of all rounds; they come in turn, as those of a shared pass do."""

    def probes(sessions: int) -> float:
        shared, luck = Experience(), random.Random(6)
        pair = Pair(lambda i: 0.1, 0.3)
        simulate(control(shared), pair, 500, luck)
        with contextlib.ExitStack() as stack:
            everybody = [control(shared) for _ in range(sessions)]
            for who in everybody:
                stack.enter_context(who.running())
            unaided = [0] * sessions
            chosen: list[int] = []
            for i in range(4000):
                who, at = everybody[i % sessions], i % sessions
                unasked, gamma = unaided[at] > 0, 0
                if unasked:
                    unaided[at] -= 1
                elif not (gamma := who.choose()):
                    unaided[at] = who.rest(UNAIDED)
                accepted = int(bool(gamma) and luck.random() < 0.1)
                who.learn(gamma, accepted, 0.3 * gamma, 1.0 + 0.03 * gamma, None if unasked else 0.0)
                chosen.append(gamma)
        return sum(gamma > 0 for gamma in chosen) / len(chosen)

    assert 0 < probes(16) <= 1.1 * probes(1)


def test_a_session_has_its_own_acceptance() -> None:
    shared, luck = Experience(), random.Random(1)
    easy, hard = control(shared), control(shared)
    chosen_easy: list[int] = []
    chosen_hard: list[int] = []
    for _ in range(60):
        chosen_easy += simulate(easy, Pair(lambda i: 0.95, 0.1), 20, luck)[1]
        chosen_hard += simulate(hard, Pair(lambda i: 0.02, 0.1), 20, luck)[1]
    assert sum(chosen_easy[-50:]) / 50 > 4
    assert sum(chosen_hard[-50:]) / 50 < 1


def test_copies_are_judged_apart_from_a_useless_model() -> None:
    who, luck = control(), random.Random(2)
    useless = Pair(lambda i: 0.02, 0.3)
    simulate(who, useless, 500, luck)
    for _ in range(40):
        gamma = who.choose(Outlook.COPY)
        # a copy costs nothing and always holds
        who.learn(gamma, gamma, 0.0, 1.0 + 0.03 * gamma, 0.0)
    assert [who.choose(Outlook.COPY) for _ in range(10)].count(LARGEST) >= 9
    assert [who.choose() for _ in range(10)].count(0) >= 7


def test_only_a_copy_that_pays_ends_a_rest() -> None:
    who, luck = control(), random.Random(2)
    simulate(who, Pair(lambda i: 0.02, 0.3), 500, luck)
    assert who.choose() == 0
    assert who.wakes(Outlook.COPY)
    assert not who.wakes(Outlook.USUAL)
    for _ in range(200):
        who.choose(Outlook.COPY)
        who.learn(4, 0, 0.0, 1.5, 0.0)
    assert not who.wakes(Outlook.COPY)
    assert not FixedGamma(0).wakes(Outlook.COPY)


def test_greedy_text_is_judged_apart_from_drawn_text() -> None:
    shared, luck = Experience(), random.Random(3)
    limits = GammaLimits(largest=LARGEST, first=4, unaided=UNAIDED)
    for _ in range(4):
        simulate(GammaControl(limits, shared), Pair(lambda i: 0.05, 0.3), 400, luck)
        simulate(GammaControl(limits, shared, greedy=True), Pair(lambda i: 0.9, 0.1), 400, luck)
    assert GammaControl(limits, shared, greedy=True).choose() > 3
    drawn = GammaControl(limits, shared)
    assert [drawn.choose() for _ in range(20)].count(0) > 14


@pytest.mark.parametrize("seed", range(4))
def test_a_new_session_whose_text_is_easy_is_found_at_once(seed: int) -> None:
    shared, luck = Experience(), random.Random(seed)
    simulate(control(shared), Pair(lambda i: 0.1, 0.1), 3000, luck)
    easy = Pair(lambda i: 0.98, 0.1)
    rate, _ = simulate(control(shared), easy, 100, luck)
    assert rate > 2 * easy.rate(0)


def test_a_session_does_not_try_what_could_not_pay() -> None:
    shared, luck = Experience(), random.Random(4)
    dear = Pair(lambda i: 0.5, 1.2)
    simulate(control(shared), dear, 800, luck)
    _, chosen = simulate(control(shared), dear, 20, luck)
    assert not any(chosen)


def test_where_nothing_would_come_nothing_is_asked_for() -> None:
    who = control()
    assert who.choose(Outlook.NOTHING) == 0
    assert who.rest(4) == 4


def test_nothing_known_means_the_default() -> None:
    assert control().choose() == 4
    assert GammaControl(GammaLimits(largest=2, first=4), Experience()).choose() == 2
    assert GammaControl(GammaLimits(largest=0, first=4), Experience()).choose() == 0


def test_a_prompt_s_own_time_is_not_a_round_s() -> None:
    shared = Experience()
    who = control(shared)
    who.learn(4, 4, 90.0, 90.0, 0.0)
    assert not shared.timing.weight
    who.learn(4, 4, 0.4, 1.0, 0.0)
    assert shared.timing.seconds == 1.0


def test_one_very_long_round_says_little() -> None:
    timing = Timing()
    for _ in range(100):
        timing.add(4, 1.0, 0.0, 0.997)
    timing.add(4, 100.0, 0.0, 0.997)
    base, step = timing.line()
    assert 0.8 < base + 4 * step < 1.3


def test_the_line_through_rounds_of_several_lengths() -> None:
    timing = Timing()
    for gamma in (0, 2, 4, 8) * 20:
        timing.add(gamma, 1.0 + 0.2 * gamma, 0.0, 0.997)
    base, step = timing.line()
    assert base == pytest.approx(1.0, abs=0.02)
    assert step == pytest.approx(0.2, abs=0.01)


def test_rounds_that_come_unasked_count_like_those_that_were_chosen() -> None:
    timing = Timing()
    for _ in range(50):
        timing.add(4, 1.2, 0.5, 0.997)
    for _ in range(50):
        timing.add(0, 1.0, None, 0.997)
    base, step = timing.line()
    assert base == pytest.approx(1.5, abs=0.02)
    assert step == pytest.approx(0.05, abs=0.01)
    assert timing.wire == pytest.approx(0.5)


def test_no_rest_runs_past_a_probe() -> None:
    who, luck = control(), random.Random(2)
    _, chosen = simulate(who, GARBAGE["never right and far away"], 3000, luck)
    rounds = [i for i, gamma in enumerate(chosen) if gamma and i > 100]
    bursts = [i for before, i in itertools.pairwise(rounds) if i - before > 1]
    assert len(bursts) >= 3
    assert all(later - earlier <= 512 + UNAIDED for earlier, later in itertools.pairwise(bursts))


def test_a_control_that_does_not_rest_lets_nothing_run_unasked() -> None:
    who, luck = control(), random.Random(3)
    simulate(who, GOOD["good"], 500, luck)
    assert who.choose() > 0
    assert who.rest(UNAIDED) == 0
    assert FixedGamma(4).rest(UNAIDED) == 0
    assert FixedGamma(0).rest(UNAIDED) == UNAIDED


def test_a_fixed_gamma_stays() -> None:
    fixed = FixedGamma(3)
    fixed.learn(3, 0, 1.0, 1.0, 0.0)
    assert fixed.choose() == 3


def test_choices_do_not_depend_on_tokens_to_come() -> None:
    """Two futures that agree up to a round agree on its γ (L6)."""
    a, b = control(), control()
    luck = random.Random(5)
    for _ in range(200):
        gamma = a.choose()
        assert gamma == b.choose()
        accepted = luck.randrange(gamma + 1)
        trip = luck.uniform(0.9, 1.1)
        for who in (a, b):
            who.learn(gamma, accepted, 0.1 * gamma, trip, 0.0)
