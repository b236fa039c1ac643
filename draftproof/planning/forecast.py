"""What a cluster will do, in closed form.

A stream's cycle is T = Z + W + S: Z away from the target (drafting, link, overheads), W waiting for the pass before its
own, S its own pass over b rounds. With n streams on a target:

- light: nobody waits, T = Z + S(1), as long as n·S(1) ≤ T;
- together: where Z < S(n)/2 the target waits for those who are about to come back (`target_service.gathering`), and all
  n share each pass, T = Z + S(n); on shared cores, where a pass slows down whoever drafts, if Z < S(n)/4;
- busy: passes back to back, m of them in a cycle, n/m rounds each, T = m·S(n/m) with m = max(2, 1 + Z/S(n/m)), as
  streams that were in one pass stay together.

T is the larger of the two, and at least what the drafts need for all their steps and the link for all its bytes. A
block drafted ahead (chance h) takes drafting out of Z as far as round trip and verification hide it. The tokens are
E(γ) = 1 + Σ Π a (`Setup.tokens_per_round`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from draftproof.planning.setup import Setup

_ROUNDS = 200
_DAMPING = 0.5
_CLOSE = 1e-6
_ALONE = 1.5
FULL = 0.9
"""Utilisation from which a part counts as the limit."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is expected.

    Attributes:
        tokens_per_second: of all streams together.
        cycle: seconds of a round, as a stream sees it.
        tokens_per_round: committed by a round.
        batch: rounds a target pass.
        target_busy, draft_busy, link_busy: shares of the time.
        parts: seconds of a cycle by what they go into: draft, link, wait, verify, overhead; hidden work left out.
    """

    tokens_per_second: float
    cycle: float
    tokens_per_round: float
    batch: float
    target_busy: float
    draft_busy: float
    link_busy: float
    parts: dict[str, float]

    @property
    def limit(self) -> str:
        """What holds it back: the fullest part, or the longest one of a cycle where none is full."""
        busy = {"target": self.target_busy, "draft": self.draft_busy, "bandwidth": self.link_busy}
        fullest = max(busy, key=lambda name: busy[name])
        if busy[fullest] >= FULL:
            return fullest
        names = {"verify": "target pass", "draft": "draft steps", "link": "distance", "wait": "target"}
        longest = max(self.parts, key=lambda name: self.parts[name])
        return names.get(longest, longest)


def forecast(setup: Setup) -> Forecast:
    """Solves for the cycle, which batch sizes depend on and which depends on them, by damped repetition.

    Where several streams share cores with their draft, drafting ahead only holds others up, and the draft's control
    turns it off; so does this.
    """
    if setup.costs.shared and setup.streams > 1:
        setup = replace(setup, ahead=False)
    state = _round(setup, setup.costs.verify(1, setup.gamma), 1.0)
    cycle, batch = state.cycle, state.batch
    for _ in range(_ROUNDS):
        state = _round(setup, cycle, batch)
        if abs(state.cycle - cycle) < _CLOSE * cycle:
            break
        cycle += _DAMPING * (state.cycle - cycle)
        batch += _DAMPING * (state.batch - batch)
    return Forecast(
        tokens_per_second=setup.streams * setup.tokens_per_round / state.cycle,
        cycle=state.cycle,
        tokens_per_round=setup.tokens_per_round,
        batch=state.batch,
        target_busy=min(1.0, state.target_work / state.cycle),
        draft_busy=min(1.0, state.draft_work / state.cycle),
        link_busy=min(1.0, state.link_work / state.cycle),
        parts=state.parts,
    )


@dataclass(frozen=True, slots=True)
class _State:
    """One repetition; work is seconds of one worker in a cycle."""

    cycle: float
    batch: float
    target_work: float
    draft_work: float
    link_work: float
    parts: dict[str, float]


def _round(setup: Setup, before: float, batch: float) -> _State:
    costs, gamma, hit = setup.costs, setup.gamma, setup.hit
    on_target, on_draft = max(1.0, setup.streams / setup.targets), max(1.0, setup.streams / setup.drafts)
    occupied = setup.link.seconds(setup.block_bytes)
    away = setup.link.rtt + occupied + costs.overhead

    # drafting: a step is shared with whoever drafts at the same time, those of the same pass at least
    steps = (hit * (gamma + 1) + (1 - hit) * (2 * gamma + 1) if setup.ahead else gamma) if gamma else 0.0
    together = 1 + (on_draft - 1) * min(1.0, steps * costs.step(1) / before)
    together = min(on_draft, max(together, batch / setup.drafts))
    step = costs.step(together)
    joining = step / 2 if gamma and (setup.ahead or together > _ALONE) else 0.0
    ahead = (gamma + 1) * step if gamma else 0.0
    light_pass = costs.verify(1, gamma)
    # a block drafted ahead needs only what round trip and pass didn't hide; on shared cores the pass hides nothing
    hidden = away if costs.shared else away + light_pass
    visible = (1 - hit) * (gamma * step + joining) + hit * max(0.0, ahead - hidden)
    if costs.shared and setup.ahead:
        light_pass += (1 - hit) * min(light_pass, max(0.0, ahead - setup.link.rtt / 2 - occupied))

    light = visible + away + light_pass
    cycle, batch, pass_seconds = light, 1.0, light_pass
    if on_target > 1:
        elsewhere, full_pass = visible + away, costs.verify(on_target, gamma)
        passes = _passes(setup, elsewhere, on_target)
        busy_pass = costs.verify(on_target / passes, gamma)
        if elsewhere < full_pass / (4 if costs.shared else 2):
            cycle, batch, pass_seconds = elsewhere + full_pass, on_target, full_pass
        elif passes * busy_pass > light:
            cycle, batch, pass_seconds = passes * busy_pass, on_target / passes, busy_pass

    target_work = on_target / batch * pass_seconds
    draft_work, needed = (on_draft / together * count * step for count in (steps, gamma + hit if gamma else 0.0))
    link_work = on_draft * occupied
    floor = max(needed, link_work)
    if costs.shared:
        # who has to wait for cores waits together
        fewest = min(target_work, 2 * costs.verify(on_target / 2, gamma)) if on_target > 1 else target_work
        floor = max(
            floor, setup.drafts * min(needed, 2 * (gamma + hit) * costs.step(on_draft / 2)) + setup.targets * fewest
        )
    cycle = max(cycle, floor)
    parts = {
        "draft": visible,
        "link": setup.link.rtt + occupied,
        "wait": max(0.0, cycle - visible - away - pass_seconds),
        "verify": pass_seconds,
        "overhead": costs.overhead,
    }
    return _State(cycle, batch, target_work, draft_work, link_work, parts)


def _passes(setup: Setup, elsewhere: float, streams: float) -> float:
    """Passes a cycle of a busy target, at most one a stream."""
    passes = 2.0
    for _ in range(_ROUNDS):
        seconds = setup.costs.verify(streams / min(passes, streams), setup.gamma)
        new = max(2.0, elsewhere / seconds + 1)
        if abs(new - passes) < _CLOSE:
            break
        passes += _DAMPING * (new - passes)
    return min(passes, streams)


def speed_up(setup: Setup) -> float:
    """Tokens a second over those of the same targets without drafts."""
    return forecast(setup).tokens_per_second / forecast(setup.alone()).tokens_per_second


def leviathan(alpha: float, gamma: int, cost_ratio: float) -> float:
    """Expected speed-up (1 − α^(γ+1)) / ((1 − α)(γc + 1)) (Leviathan et al. 2023, theorem 3.8)."""
    tokens = gamma + 1 if alpha == 1 else (1 - alpha ** (gamma + 1)) / (1 - alpha)
    return tokens / (gamma * cost_ratio + 1)
