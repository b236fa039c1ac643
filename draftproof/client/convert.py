"""Protobuf to the SDK's own types."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from draftproof.client.servers import Fingerprint, NextToken, ServerInfo
from draftproof.client.types import (
    Chunk,
    Completion,
    FinishReason,
    Logprobs,
    Masses,
    PositionTrace,
    Start,
    TimeSplit,
    Token,
    TokenSource,
    TopLogprob,
)
from draftproof.errors import ContextLengthError, ProtocolError
from draftproof.sampling.params import Rule
from draftproof.v1 import fingerprint_pb2, generation_pb2, sampling_pb2, verdict_pb2
from draftproof.wire import params as wire_params

_SOURCES = {
    verdict_pb2.TOKEN_SOURCE_ACCEPTED: TokenSource.ACCEPTED,
    verdict_pb2.TOKEN_SOURCE_RESAMPLED: TokenSource.RESAMPLED,
    verdict_pb2.TOKEN_SOURCE_BONUS: TokenSource.BONUS,
    verdict_pb2.TOKEN_SOURCE_TARGET: TokenSource.TARGET,
}
_FINISH: dict[int, FinishReason] = {
    verdict_pb2.FINISH_REASON_STOP: "stop",
    verdict_pb2.FINISH_REASON_LENGTH: "length",
}


def start(pb: generation_pb2.Started) -> Start:
    """The first event."""
    return Start(
        prompt_ids=tuple(pb.prompt_ids),
        request_key=pb.request_key,
        gamma=pb.gamma,
        target_model=pb.target_model,
        drafter=pb.drafter,
        weights_version=pb.weights_version,
        rule=_rule(pb.rule),
        weights_sha256=pb.weights_sha256,
    )


def chunk(pb: generation_pb2.Chunk) -> Chunk:
    """One round."""
    return Chunk(
        tokens=tuple(map(token, pb.tokens)),
        examined=pb.examined,
        accepted=pb.accepted,
        lossless=not pb.not_lossless,
        widths=tuple(pb.widths),
    )


def token(pb: verdict_pb2.Token) -> Token:
    """One token.

    Raises:
        ProtocolError: the server names no source this release knows.
    """
    source = _SOURCES.get(pb.source)
    if source is None:
        raise ProtocolError(f"the server sent a token of unknown source {pb.source}")
    return Token(
        id=pb.id,
        text=pb.text,
        source=source,
        logprobs=_logprobs(pb.logprobs) if pb.HasField("logprobs") else None,
        trace=_trace(pb.trace) if pb.HasField("trace") else None,
        loss=pb.loss,
        weights_version=pb.weights_version,
    )


def next_token(completion: Completion, output_ids: Sequence[int]) -> NextToken:
    """p of the one token that was generated.

    Raises:
        ContextLengthError: prompt and output left no room for it.
        ProtocolError: the server recorded no p, or part of it.
    """
    if not completion.tokens:
        held = len(completion.prompt_ids) + len(output_ids)
        raise ContextLengthError(
            f"prompt and output have {held} tokens, as many as the context holds",
            metadata={"field": "output_ids", "limit": str(held - 1)},
        )
    trace = completion.tokens[0].trace
    if trace is None or trace.p is None or trace.p.ids is not None:
        raise ProtocolError("the server did not record the whole of p")
    return NextToken(
        prompt_ids=completion.prompt_ids,
        output_ids=tuple(output_ids),
        p=trace.p.masses,
        target_model=completion.target_model,
        weights_version=completion.weights_version,
    )


def finish_reason(pb: verdict_pb2.FinishReason) -> FinishReason:
    """Why a generation ended.

    Raises:
        ProtocolError: the server gave no reason.
    """
    reason = _FINISH.get(pb)
    if reason is None:
        raise ProtocolError(f"the server ended the generation with unknown reason {pb}")
    return reason


def time_split(pb: verdict_pb2.TimeSplit) -> TimeSplit:
    """Nanoseconds to seconds."""
    return TimeSplit(
        draft=pb.draft_ns / 1e9,
        queue=pb.queue_ns / 1e9,
        forward=pb.forward_ns / 1e9,
        verify=pb.verify_ns / 1e9,
        wire=pb.wire_ns / 1e9,
        total=pb.total_ns / 1e9,
        first_token=pb.first_token_ns / 1e9,
    )


def server_info(pb: generation_pb2.GetServerInfoResponse) -> ServerInfo:
    """A server's description."""
    return ServerInfo(
        role=pb.role,
        version=pb.version,
        target=fingerprint(pb.target),
        draft=fingerprint(pb.draft) if pb.HasField("draft") else None,
        drafter=pb.drafter,
        max_context=pb.max_context,
        slots=pb.slots,
        max_gamma=pb.max_gamma,
        default_gamma=pb.default_gamma,
        max_message_bytes=pb.max_message_bytes,
        sessions=pb.sessions,
        chat_template=pb.chat_template,
        targets=tuple(pb.targets),
    )


def fingerprint(pb: fingerprint_pb2.Fingerprint) -> Fingerprint:
    """Identity of a model."""
    return Fingerprint(
        tokenizer_sha256=pb.tokenizer_sha256,
        vocab_size=pb.vocab_size,
        sampling_contract=pb.sampling_contract,
        model=pb.model,
        weights_sha256=pb.weights_sha256,
        weights_version=pb.weights_version,
    )


def _rule(pb: sampling_pb2.Rule) -> Rule:
    rule = wire_params.rule_of(pb)
    if rule is None:
        raise ProtocolError(f"the server judges by a rule this release doesn't know ({pb})")
    return rule


def _logprobs(pb: verdict_pb2.Logprobs) -> Logprobs:
    return Logprobs(
        logprob=pb.logprob,
        raw_logprob=pb.raw_logprob,
        top=tuple(map(TopLogprob, pb.top_ids, pb.top_logprobs, pb.top_raw_logprobs)),
    )


def _trace(pb: verdict_pb2.PositionTrace) -> PositionTrace:
    return PositionTrace(
        position=pb.position,
        block_start=pb.block_start,
        proposed_id=pb.proposed_id if pb.HasField("proposed_id") else None,
        accepted=pb.accepted,
        accept_uniform=pb.accept_uniform,
        accept_probability=pb.accept_probability,
        draw_uniform=pb.draw_uniform,
        p_proposed=pb.p_proposed,
        q_proposed=pb.q_proposed,
        p=_masses(pb.p) if pb.HasField("p") else None,
        q=_masses(pb.q) if pb.HasField("q") else None,
    )


def _masses(pb: verdict_pb2.Masses) -> Masses:
    # arrays: a full trace holds V floats per position, and boxed ones would take eight times the room
    return Masses(ids=array("L", pb.ids) if pb.ids else None, masses=array("f", pb.masses))
