"""One pass on the model thread, and how its bugs are told."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from draftproof.engine.interface import Engine
from draftproof.errors import InternalError
from draftproof.verification.round import RoundResult, verify_rounds
from target_service.schedule import PlannedRow

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PassOutcome:
    """What a pass gave: results of its rounds in row order, and times in nanoseconds."""

    results: Sequence[RoundResult]
    forward_ns: int
    verify_ns: int


def run_pass(engine: Engine, rows: Sequence[PlannedRow]) -> PassOutcome:
    """On the model thread: copies of shared beginnings, forward pass, verification of the rounds that ride on it."""
    start = time.monotonic_ns()
    for row in rows:
        if row.copy_from is not None:
            engine.copy(row.copy_from, row.row.slot, row.row.start)
    logits = engine.forward([row.row for row in rows])
    forwarded = time.monotonic_ns()
    rounds = [row.session.round_input() for row in rows if row.verifies]
    results = verify_rounds(logits, rounds, owned=True) if rounds else []
    for verified, result in zip((row.row for row in rows if row.verifies), results, strict=True):
        if verified.parents and result.finite:
            engine.keep(verified.slot, result.path)
    return PassOutcome(results, forwarded - start, time.monotonic_ns() - forwarded)


def bug(what: str) -> InternalError:
    """Logs the exception in hand under an id; the error names it and nothing else."""
    number = uuid.uuid4().hex[:12]
    log.exception(what, bug=number)
    return InternalError(f"{what}; look for {number} in the target's log")
