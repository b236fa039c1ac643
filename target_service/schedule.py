"""Which rows the next forward pass holds: pure policy, no clocks, no tensors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from draftproof.engine.interface import Row
from target_service.session import Session


@dataclass(frozen=True, slots=True)
class PassLimits:
    """Limits of one forward pass.

    Attributes:
        max_tokens: most tokens over all rows; a single row may exceed it alone.
        prefill_chunk: chunks end at multiples of this, whatever the batch mates.
        merge: whether a round may ride on the last chunk of its prompt. Off where a row's arithmetic must not depend
            on timing (batch-invariant engines).
    """

    max_tokens: int = 512
    prefill_chunk: int = 256
    merge: bool = True


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """A row and the session it serves; `verifies` if its pending round rides on it."""

    session: Session
    row: Row
    verifies: bool


def plan(sessions: Iterable[Session], limits: PassLimits) -> list[PlannedRow]:
    """Rounds first, in order of arrival, then prompt chunks, oldest session first.

    Args:
        sessions: active sessions, none of them in flight.
    """
    waiting = list(sessions)
    rounds = [s for s in waiting if s.pending is not None and _reaches_end(s, limits)]
    rounds.sort(key=lambda s: s.pending.arrived_ns if s.pending else 0)
    riding = set(map(id, rounds))
    chunks = [s for s in waiting if id(s) not in riding and s.prefill_left() > 0]
    rows: list[PlannedRow] = []
    budget = limits.max_tokens
    for planned in [*map(_round_row, rounds), *(_chunk_row(s, limits) for s in chunks)]:
        size = len(planned.row.token_ids)
        if rows and size > budget:
            continue
        rows.append(planned)
        budget -= size
    return rows


def _reaches_end(session: Session, limits: PassLimits) -> bool:
    left = session.prefill_left()
    return left == 0 or (limits.merge and _chunk_end(session, limits) == len(session.tokens) - 1)


def _chunk_end(session: Session, limits: PassLimits) -> int:
    boundary = (session.cached // limits.prefill_chunk + 1) * limits.prefill_chunk
    return min(boundary, len(session.tokens) - 1)


def _round_row(session: Session) -> PlannedRow:
    assert session.pending is not None
    assert session.slot is not None
    proposals = session.pending.intake.tokens
    fed = [*session.tokens[session.cached :], *proposals]
    return PlannedRow(session, Row(session.slot, session.cached, fed, len(proposals) + 1), verifies=True)


def _chunk_row(session: Session, limits: PassLimits) -> PlannedRow:
    assert session.slot is not None
    fed = session.tokens[session.cached : _chunk_end(session, limits)]
    return PlannedRow(session, Row(session.slot, session.cached, fed, 0), verifies=False)
