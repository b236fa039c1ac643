from draftproof.v1 import orchestrator_pb2 as _orchestrator_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RunningSessions(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RUNNING_SESSIONS_UNSPECIFIED: _ClassVar[RunningSessions]
    RUNNING_SESSIONS_FINISH: _ClassVar[RunningSessions]
    RUNNING_SESSIONS_RESTART: _ClassVar[RunningSessions]
RUNNING_SESSIONS_UNSPECIFIED: RunningSessions
RUNNING_SESSIONS_FINISH: RunningSessions
RUNNING_SESSIONS_RESTART: RunningSessions

class UpdateWeightsRequest(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: UpdateWeightsHeader
    chunk: bytes
    def __init__(self, header: _Optional[_Union[UpdateWeightsHeader, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class UpdateWeightsHeader(_message.Message):
    __slots__ = ("path", "stream", "running", "role", "version")
    PATH_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    path: str
    stream: WeightsStream
    running: RunningSessions
    role: _orchestrator_pb2.WorkerRole
    version: int
    def __init__(self, path: _Optional[str] = ..., stream: _Optional[_Union[WeightsStream, _Mapping]] = ..., running: _Optional[_Union[RunningSessions, str]] = ..., role: _Optional[_Union[_orchestrator_pb2.WorkerRole, str]] = ..., version: _Optional[int] = ...) -> None: ...

class WeightsStream(_message.Message):
    __slots__ = ("size", "sha256")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    size: int
    sha256: bytes
    def __init__(self, size: _Optional[int] = ..., sha256: _Optional[bytes] = ...) -> None: ...

class UpdateWeightsResponse(_message.Message):
    __slots__ = ("servers",)
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    servers: _containers.RepeatedCompositeFieldContainer[UpdatedServer]
    def __init__(self, servers: _Optional[_Iterable[_Union[UpdatedServer, _Mapping]]] = ...) -> None: ...

class UpdatedServer(_message.Message):
    __slots__ = ("name", "weights_version", "weights_sha256", "restarted", "problem")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_VERSION_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_SHA256_FIELD_NUMBER: _ClassVar[int]
    RESTARTED_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    name: str
    weights_version: int
    weights_sha256: bytes
    restarted: int
    problem: str
    def __init__(self, name: _Optional[str] = ..., weights_version: _Optional[int] = ..., weights_sha256: _Optional[bytes] = ..., restarted: _Optional[int] = ..., problem: _Optional[str] = ...) -> None: ...
