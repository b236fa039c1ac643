from draftproof.v1 import distribution_pb2 as _distribution_pb2
from draftproof.v1 import error_pb2 as _error_pb2
from draftproof.v1 import fingerprint_pb2 as _fingerprint_pb2
from draftproof.v1 import generation_pb2 as _generation_pb2
from draftproof.v1 import sampling_pb2 as _sampling_pb2
from draftproof.v1 import verdict_pb2 as _verdict_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class VerifyRequest(_message.Message):
    __slots__ = ("session", "epoch", "round", "hello", "token_digests", "open", "block", "close", "halt")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    TOKEN_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    HALT_FIELD_NUMBER: _ClassVar[int]
    session: int
    epoch: int
    round: int
    hello: Hello
    token_digests: TokenDigests
    open: OpenSession
    block: Block
    close: CloseSession
    halt: Halt
    def __init__(self, session: _Optional[int] = ..., epoch: _Optional[int] = ..., round: _Optional[int] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., token_digests: _Optional[_Union[TokenDigests, _Mapping]] = ..., open: _Optional[_Union[OpenSession, _Mapping]] = ..., block: _Optional[_Union[Block, _Mapping]] = ..., close: _Optional[_Union[CloseSession, _Mapping]] = ..., halt: _Optional[_Union[Halt, _Mapping]] = ...) -> None: ...

class VerifyResponse(_message.Message):
    __slots__ = ("session", "epoch", "round", "welcome", "token_digests_query", "opened", "verdict", "error")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    TOKEN_DIGESTS_QUERY_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    session: int
    epoch: int
    round: int
    welcome: Welcome
    token_digests_query: TokenDigestsQuery
    opened: SessionOpened
    verdict: _verdict_pb2.Verdict
    error: _error_pb2.Error
    def __init__(self, session: _Optional[int] = ..., epoch: _Optional[int] = ..., round: _Optional[int] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., token_digests_query: _Optional[_Union[TokenDigestsQuery, _Mapping]] = ..., opened: _Optional[_Union[SessionOpened, _Mapping]] = ..., verdict: _Optional[_Union[_verdict_pb2.Verdict, _Mapping]] = ..., error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("fingerprint", "drafter", "max_message_bytes")
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    fingerprint: _fingerprint_pb2.Fingerprint
    drafter: str
    max_message_bytes: int
    def __init__(self, fingerprint: _Optional[_Union[_fingerprint_pb2.Fingerprint, _Mapping]] = ..., drafter: _Optional[str] = ..., max_message_bytes: _Optional[int] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("fingerprint", "max_gamma", "max_context", "max_message_bytes", "max_unaided")
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    MAX_GAMMA_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_UNAIDED_FIELD_NUMBER: _ClassVar[int]
    fingerprint: _fingerprint_pb2.Fingerprint
    max_gamma: int
    max_context: int
    max_message_bytes: int
    max_unaided: int
    def __init__(self, fingerprint: _Optional[_Union[_fingerprint_pb2.Fingerprint, _Mapping]] = ..., max_gamma: _Optional[int] = ..., max_context: _Optional[int] = ..., max_message_bytes: _Optional[int] = ..., max_unaided: _Optional[int] = ...) -> None: ...

class TokenDigestsQuery(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TokenDigests(_message.Message):
    __slots__ = ("digests",)
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    digests: bytes
    def __init__(self, digests: _Optional[bytes] = ...) -> None: ...

class OpenSession(_message.Message):
    __slots__ = ("prompt_ids", "output_ids", "sampling", "request_key", "sample_index", "trace", "request_id")
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    REQUEST_KEY_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    prompt_ids: _containers.RepeatedScalarFieldContainer[int]
    output_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: _sampling_pb2.SamplingParams
    request_key: bytes
    sample_index: int
    trace: _generation_pb2.TraceOptions
    request_id: str
    def __init__(self, prompt_ids: _Optional[_Iterable[int]] = ..., output_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[_sampling_pb2.SamplingParams, _Mapping]] = ..., request_key: _Optional[bytes] = ..., sample_index: _Optional[int] = ..., trace: _Optional[_Union[_generation_pb2.TraceOptions, _Mapping]] = ..., request_id: _Optional[str] = ...) -> None: ...

class SessionOpened(_message.Message):
    __slots__ = ("request_key", "weights_version", "max_new_tokens", "weights_sha256")
    REQUEST_KEY_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_VERSION_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_SHA256_FIELD_NUMBER: _ClassVar[int]
    request_key: bytes
    weights_version: int
    max_new_tokens: int
    weights_sha256: bytes
    def __init__(self, request_key: _Optional[bytes] = ..., weights_version: _Optional[int] = ..., max_new_tokens: _Optional[int] = ..., weights_sha256: _Optional[bytes] = ...) -> None: ...

class Block(_message.Message):
    __slots__ = ("start", "proposals", "draft_ns", "unaided")
    START_FIELD_NUMBER: _ClassVar[int]
    PROPOSALS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_NS_FIELD_NUMBER: _ClassVar[int]
    UNAIDED_FIELD_NUMBER: _ClassVar[int]
    start: int
    proposals: _containers.RepeatedCompositeFieldContainer[Proposal]
    draft_ns: int
    unaided: int
    def __init__(self, start: _Optional[int] = ..., proposals: _Optional[_Iterable[_Union[Proposal, _Mapping]]] = ..., draft_ns: _Optional[int] = ..., unaided: _Optional[int] = ...) -> None: ...

class Proposal(_message.Message):
    __slots__ = ("token_id", "q", "parent")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    Q_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    q: _distribution_pb2.Distribution
    parent: int
    def __init__(self, token_id: _Optional[int] = ..., q: _Optional[_Union[_distribution_pb2.Distribution, _Mapping]] = ..., parent: _Optional[int] = ...) -> None: ...

class Halt(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CloseSession(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
