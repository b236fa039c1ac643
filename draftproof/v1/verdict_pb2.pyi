from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TokenSource(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TOKEN_SOURCE_UNSPECIFIED: _ClassVar[TokenSource]
    TOKEN_SOURCE_ACCEPTED: _ClassVar[TokenSource]
    TOKEN_SOURCE_RESAMPLED: _ClassVar[TokenSource]
    TOKEN_SOURCE_BONUS: _ClassVar[TokenSource]
    TOKEN_SOURCE_TARGET: _ClassVar[TokenSource]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]

class RefusalKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REFUSAL_KIND_UNSPECIFIED: _ClassVar[RefusalKind]
    REFUSAL_KIND_MALFORMED_Q: _ClassVar[RefusalKind]
    REFUSAL_KIND_DRAW_MISMATCH: _ClassVar[RefusalKind]
    REFUSAL_KIND_ZERO_MASS: _ClassVar[RefusalKind]
    REFUSAL_KIND_QUARANTINED: _ClassVar[RefusalKind]
TOKEN_SOURCE_UNSPECIFIED: TokenSource
TOKEN_SOURCE_ACCEPTED: TokenSource
TOKEN_SOURCE_RESAMPLED: TokenSource
TOKEN_SOURCE_BONUS: TokenSource
TOKEN_SOURCE_TARGET: TokenSource
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
REFUSAL_KIND_UNSPECIFIED: RefusalKind
REFUSAL_KIND_MALFORMED_Q: RefusalKind
REFUSAL_KIND_DRAW_MISMATCH: RefusalKind
REFUSAL_KIND_ZERO_MASS: RefusalKind
REFUSAL_KIND_QUARANTINED: RefusalKind

class Token(_message.Message):
    __slots__ = ("id", "text", "source", "logprobs", "trace", "loss", "weights_version")
    ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_VERSION_FIELD_NUMBER: _ClassVar[int]
    id: int
    text: str
    source: TokenSource
    logprobs: Logprobs
    trace: PositionTrace
    loss: float
    weights_version: int
    def __init__(self, id: _Optional[int] = ..., text: _Optional[str] = ..., source: _Optional[_Union[TokenSource, str]] = ..., logprobs: _Optional[_Union[Logprobs, _Mapping]] = ..., trace: _Optional[_Union[PositionTrace, _Mapping]] = ..., loss: _Optional[float] = ..., weights_version: _Optional[int] = ...) -> None: ...

class Logprobs(_message.Message):
    __slots__ = ("logprob", "raw_logprob", "top_ids", "top_logprobs", "top_raw_logprobs")
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    RAW_LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOP_RAW_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    logprob: float
    raw_logprob: float
    top_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    top_raw_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, logprob: _Optional[float] = ..., raw_logprob: _Optional[float] = ..., top_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ..., top_raw_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class PositionTrace(_message.Message):
    __slots__ = ("position", "block_start", "proposed_id", "accepted", "accept_uniform", "draw_uniform", "p_proposed", "q_proposed", "p", "q", "accept_probability")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    BLOCK_START_FIELD_NUMBER: _ClassVar[int]
    PROPOSED_ID_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_UNIFORM_FIELD_NUMBER: _ClassVar[int]
    DRAW_UNIFORM_FIELD_NUMBER: _ClassVar[int]
    P_PROPOSED_FIELD_NUMBER: _ClassVar[int]
    Q_PROPOSED_FIELD_NUMBER: _ClassVar[int]
    P_FIELD_NUMBER: _ClassVar[int]
    Q_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    position: int
    block_start: int
    proposed_id: int
    accepted: bool
    accept_uniform: float
    draw_uniform: float
    p_proposed: float
    q_proposed: float
    p: Masses
    q: Masses
    accept_probability: float
    def __init__(self, position: _Optional[int] = ..., block_start: _Optional[int] = ..., proposed_id: _Optional[int] = ..., accepted: _Optional[bool] = ..., accept_uniform: _Optional[float] = ..., draw_uniform: _Optional[float] = ..., p_proposed: _Optional[float] = ..., q_proposed: _Optional[float] = ..., p: _Optional[_Union[Masses, _Mapping]] = ..., q: _Optional[_Union[Masses, _Mapping]] = ..., accept_probability: _Optional[float] = ...) -> None: ...

class Masses(_message.Message):
    __slots__ = ("ids", "masses")
    IDS_FIELD_NUMBER: _ClassVar[int]
    MASSES_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    masses: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, ids: _Optional[_Iterable[int]] = ..., masses: _Optional[_Iterable[float]] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("offset", "kind", "message")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    offset: int
    kind: RefusalKind
    message: str
    def __init__(self, offset: _Optional[int] = ..., kind: _Optional[_Union[RefusalKind, str]] = ..., message: _Optional[str] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("accepted", "examined", "tokens", "finish_reason", "refusal", "expected_accepted", "timings", "lossless", "weights_sha256", "widths", "unaided")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    EXAMINED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    LOSSLESS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_SHA256_FIELD_NUMBER: _ClassVar[int]
    WIDTHS_FIELD_NUMBER: _ClassVar[int]
    UNAIDED_FIELD_NUMBER: _ClassVar[int]
    accepted: int
    examined: int
    tokens: _containers.RepeatedCompositeFieldContainer[Token]
    finish_reason: FinishReason
    refusal: Refusal
    expected_accepted: float
    timings: TargetTimings
    lossless: bool
    weights_sha256: bytes
    widths: _containers.RepeatedScalarFieldContainer[int]
    unaided: int
    def __init__(self, accepted: _Optional[int] = ..., examined: _Optional[int] = ..., tokens: _Optional[_Iterable[_Union[Token, _Mapping]]] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., expected_accepted: _Optional[float] = ..., timings: _Optional[_Union[TargetTimings, _Mapping]] = ..., lossless: _Optional[bool] = ..., weights_sha256: _Optional[bytes] = ..., widths: _Optional[_Iterable[int]] = ..., unaided: _Optional[int] = ...) -> None: ...

class TargetTimings(_message.Message):
    __slots__ = ("queue_ns", "forward_ns", "verify_ns")
    QUEUE_NS_FIELD_NUMBER: _ClassVar[int]
    FORWARD_NS_FIELD_NUMBER: _ClassVar[int]
    VERIFY_NS_FIELD_NUMBER: _ClassVar[int]
    queue_ns: int
    forward_ns: int
    verify_ns: int
    def __init__(self, queue_ns: _Optional[int] = ..., forward_ns: _Optional[int] = ..., verify_ns: _Optional[int] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "completion_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    completion_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ...) -> None: ...

class SpeculationStats(_message.Message):
    __slots__ = ("rounds", "drafted", "accepted", "drafted_per_position", "accepted_per_position", "resampled", "bonus", "target_only", "expected_accepted", "time", "refused", "proposal_bytes")
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_PER_POSITION_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_PER_POSITION_FIELD_NUMBER: _ClassVar[int]
    RESAMPLED_FIELD_NUMBER: _ClassVar[int]
    BONUS_FIELD_NUMBER: _ClassVar[int]
    TARGET_ONLY_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    PROPOSAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    rounds: int
    drafted: int
    accepted: int
    drafted_per_position: _containers.RepeatedScalarFieldContainer[int]
    accepted_per_position: _containers.RepeatedScalarFieldContainer[int]
    resampled: int
    bonus: int
    target_only: int
    expected_accepted: float
    time: TimeSplit
    refused: int
    proposal_bytes: int
    def __init__(self, rounds: _Optional[int] = ..., drafted: _Optional[int] = ..., accepted: _Optional[int] = ..., drafted_per_position: _Optional[_Iterable[int]] = ..., accepted_per_position: _Optional[_Iterable[int]] = ..., resampled: _Optional[int] = ..., bonus: _Optional[int] = ..., target_only: _Optional[int] = ..., expected_accepted: _Optional[float] = ..., time: _Optional[_Union[TimeSplit, _Mapping]] = ..., refused: _Optional[int] = ..., proposal_bytes: _Optional[int] = ...) -> None: ...

class TimeSplit(_message.Message):
    __slots__ = ("draft_ns", "queue_ns", "forward_ns", "verify_ns", "wire_ns", "total_ns", "first_token_ns")
    DRAFT_NS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_NS_FIELD_NUMBER: _ClassVar[int]
    FORWARD_NS_FIELD_NUMBER: _ClassVar[int]
    VERIFY_NS_FIELD_NUMBER: _ClassVar[int]
    WIRE_NS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_NS_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_NS_FIELD_NUMBER: _ClassVar[int]
    draft_ns: int
    queue_ns: int
    forward_ns: int
    verify_ns: int
    wire_ns: int
    total_ns: int
    first_token_ns: int
    def __init__(self, draft_ns: _Optional[int] = ..., queue_ns: _Optional[int] = ..., forward_ns: _Optional[int] = ..., verify_ns: _Optional[int] = ..., wire_ns: _Optional[int] = ..., total_ns: _Optional[int] = ..., first_token_ns: _Optional[int] = ...) -> None: ...
