"""Which rows the next forward pass holds: pure policy, no clocks, no tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    """A row and the session it serves.

    Attributes:
        verifies: whether its pending round rides on it.
        copy_from: slot to copy the tokens before `row.start` from first; None where the session's own slot holds them.
    """

    session: Session
    row: Row
    verifies: bool
    copy_from: int | None = None


def plan(sessions: Iterable[Session], limits: PassLimits) -> list[PlannedRow]:
    """Rounds first, in order of arrival, then prompt chunks, oldest session first.

    Args:
        sessions: active sessions, none of them in flight.
    """
    waiting = [s for s in sessions if not s.waits_for_donor]
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
    boundary = (session.start // limits.prefill_chunk + 1) * limits.prefill_chunk
    return min(boundary, len(session.tokens) - 1)


def _round_row(session: Session) -> PlannedRow:
    assert session.pending is not None
    proposals, tree = session.pending.intake.tokens, session.pending.intake.tree
    fed = [*session.tokens[session.start :], *proposals]
    return _planned(session, fed, logits=len(proposals) + 1, parents=tree.parents if tree else ())


def _chunk_row(session: Session, limits: PassLimits) -> PlannedRow:
    return _planned(session, session.tokens[session.start : _chunk_end(session, limits)], logits=0)


def _planned(session: Session, fed: Sequence[int], logits: int, parents: Sequence[int] = ()) -> PlannedRow:
    """The row that feeds these tokens; only rounds want logits."""
    assert session.slot is not None
    copy_from = session.donor.slot if session.donor is not None else None
    return PlannedRow(session, Row(session.slot, session.start, fed, logits, parents), logits > 0, copy_from)
