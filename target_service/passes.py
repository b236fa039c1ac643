"""One pass on the model thread."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from draftproof.engine.interface import Engine
from draftproof.verification.round import RoundResult, verify_rounds
from target_service.schedule import PlannedRow


@dataclass(frozen=True, slots=True)
class PassOutcome:
    """What a pass gave: results of its rounds in row order, and times in nanoseconds."""

    results: Sequence[RoundResult]
    forward_ns: int
    verify_ns: int


def run_pass(engine: Engine, rows: Sequence[PlannedRow]) -> PassOutcome:
    """On the model thread: forward pass, then verification of the rounds that ride on it."""
    start = time.monotonic_ns()
    logits = engine.forward([row.row for row in rows])
    forwarded = time.monotonic_ns()
    rounds = [row.session.round_input() for row in rows if row.verifies]
    results = verify_rounds(logits, rounds) if rounds else []
    return PassOutcome(results, forwarded - start, time.monotonic_ns() - forwarded)
