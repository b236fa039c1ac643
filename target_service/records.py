"""What a verdict says beside its tokens, in wire form."""

from __future__ import annotations

from draftproof.v1 import verdict_pb2
from draftproof.verification.records import Masses, PositionRecord, TokenLogprobs


def to_logprobs(found: TokenLogprobs) -> verdict_pb2.Logprobs:
    """Log-probabilities of one token."""
    return verdict_pb2.Logprobs(
        logprob=found.logprob,
        raw_logprob=found.raw_logprob,
        top_ids=found.top_ids,
        top_logprobs=found.top_logprobs,
        top_raw_logprobs=found.top_raw_logprobs,
    )


def to_trace(record: PositionRecord) -> verdict_pb2.PositionTrace:
    """Verification record of one position."""
    return verdict_pb2.PositionTrace(
        position=record.position,
        block_start=record.block_start,
        proposed_id=record.proposed_id,
        accepted=record.accepted,
        accept_uniform=record.accept_uniform,
        accept_probability=record.accept_probability,
        draw_uniform=record.draw_uniform,
        p_proposed=record.p_proposed,
        q_proposed=record.q_proposed,
        p=_masses(record.p),
        q=None if record.q is None else _masses(record.q),
    )


def _masses(masses: Masses) -> verdict_pb2.Masses:
    return verdict_pb2.Masses(ids=None if masses.ids is None else masses.ids.tolist(), masses=masses.masses.tolist())
