from draftproof.v1 import fingerprint_pb2 as _fingerprint_pb2
from draftproof.v1 import sampling_pb2 as _sampling_pb2
from draftproof.v1 import verdict_pb2 as _verdict_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GenerateRequest(_message.Message):
    __slots__ = ("text", "token_ids", "chat", "sampling", "request_id", "sample_index", "trace", "resume", "priority")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    text: str
    token_ids: TokenIds
    chat: Chat
    sampling: _sampling_pb2.SamplingParams
    request_id: str
    sample_index: int
    trace: TraceOptions
    resume: Resume
    priority: int
    def __init__(self, text: _Optional[str] = ..., token_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., chat: _Optional[_Union[Chat, _Mapping]] = ..., sampling: _Optional[_Union[_sampling_pb2.SamplingParams, _Mapping]] = ..., request_id: _Optional[str] = ..., sample_index: _Optional[int] = ..., trace: _Optional[_Union[TraceOptions, _Mapping]] = ..., resume: _Optional[_Union[Resume, _Mapping]] = ..., priority: _Optional[int] = ...) -> None: ...

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Chat(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ...) -> None: ...

class ChatMessage(_message.Message):
    __slots__ = ("role", "content")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ...) -> None: ...

class TraceOptions(_message.Message):
    __slots__ = ("top_n",)
    TOP_N_FIELD_NUMBER: _ClassVar[int]
    top_n: int
    def __init__(self, top_n: _Optional[int] = ...) -> None: ...

class Resume(_message.Message):
    __slots__ = ("request_key", "output_ids")
    REQUEST_KEY_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_IDS_FIELD_NUMBER: _ClassVar[int]
    request_key: bytes
    output_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, request_key: _Optional[bytes] = ..., output_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("started", "chunk", "finished", "handed_back")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    HANDED_BACK_FIELD_NUMBER: _ClassVar[int]
    started: Started
    chunk: Chunk
    finished: Finished
    handed_back: Resume
    def __init__(self, started: _Optional[_Union[Started, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ..., handed_back: _Optional[_Union[Resume, _Mapping]] = ...) -> None: ...

class Started(_message.Message):
    __slots__ = ("prompt_ids", "request_key", "gamma", "target_model", "drafter", "weights_version", "rule", "weights_sha256")
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_KEY_FIELD_NUMBER: _ClassVar[int]
    GAMMA_FIELD_NUMBER: _ClassVar[int]
    TARGET_MODEL_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_VERSION_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_SHA256_FIELD_NUMBER: _ClassVar[int]
    prompt_ids: _containers.RepeatedScalarFieldContainer[int]
    request_key: bytes
    gamma: int
    target_model: str
    drafter: str
    weights_version: int
    rule: _sampling_pb2.Rule
    weights_sha256: bytes
    def __init__(self, prompt_ids: _Optional[_Iterable[int]] = ..., request_key: _Optional[bytes] = ..., gamma: _Optional[int] = ..., target_model: _Optional[str] = ..., drafter: _Optional[str] = ..., weights_version: _Optional[int] = ..., rule: _Optional[_Union[_sampling_pb2.Rule, str]] = ..., weights_sha256: _Optional[bytes] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("tokens", "examined", "accepted", "not_lossless", "weights_sha256", "widths")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    EXAMINED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    NOT_LOSSLESS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_SHA256_FIELD_NUMBER: _ClassVar[int]
    WIDTHS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[_verdict_pb2.Token]
    examined: int
    accepted: int
    not_lossless: bool
    weights_sha256: bytes
    widths: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, tokens: _Optional[_Iterable[_Union[_verdict_pb2.Token, _Mapping]]] = ..., examined: _Optional[int] = ..., accepted: _Optional[int] = ..., not_lossless: _Optional[bool] = ..., weights_sha256: _Optional[bytes] = ..., widths: _Optional[_Iterable[int]] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("finish_reason", "usage", "stats", "lossless", "notes")
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    STATS_FIELD_NUMBER: _ClassVar[int]
    LOSSLESS_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    finish_reason: _verdict_pb2.FinishReason
    usage: _verdict_pb2.Usage
    stats: _verdict_pb2.SpeculationStats
    lossless: bool
    notes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, finish_reason: _Optional[_Union[_verdict_pb2.FinishReason, str]] = ..., usage: _Optional[_Union[_verdict_pb2.Usage, _Mapping]] = ..., stats: _Optional[_Union[_verdict_pb2.SpeculationStats, _Mapping]] = ..., lossless: _Optional[bool] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...

class GetServerInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetServerInfoResponse(_message.Message):
    __slots__ = ("role", "version", "target", "draft", "drafter", "max_context", "slots", "max_gamma", "default_gamma", "max_message_bytes", "sessions", "chat_template", "targets", "waiting", "pid", "metrics_port")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    MAX_GAMMA_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_GAMMA_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    METRICS_PORT_FIELD_NUMBER: _ClassVar[int]
    role: str
    version: str
    target: _fingerprint_pb2.Fingerprint
    draft: _fingerprint_pb2.Fingerprint
    drafter: str
    max_context: int
    slots: int
    max_gamma: int
    default_gamma: int
    max_message_bytes: int
    sessions: int
    chat_template: bool
    targets: _containers.RepeatedScalarFieldContainer[str]
    waiting: int
    pid: int
    metrics_port: int
    def __init__(self, role: _Optional[str] = ..., version: _Optional[str] = ..., target: _Optional[_Union[_fingerprint_pb2.Fingerprint, _Mapping]] = ..., draft: _Optional[_Union[_fingerprint_pb2.Fingerprint, _Mapping]] = ..., drafter: _Optional[str] = ..., max_context: _Optional[int] = ..., slots: _Optional[int] = ..., max_gamma: _Optional[int] = ..., default_gamma: _Optional[int] = ..., max_message_bytes: _Optional[int] = ..., sessions: _Optional[int] = ..., chat_template: _Optional[bool] = ..., targets: _Optional[_Iterable[str]] = ..., waiting: _Optional[int] = ..., pid: _Optional[int] = ..., metrics_port: _Optional[int] = ...) -> None: ...
