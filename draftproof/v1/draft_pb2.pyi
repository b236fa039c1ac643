from draftproof.v1 import generation_pb2 as _generation_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DraftRequest(_message.Message):
    __slots__ = ("generation", "target")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    generation: _generation_pb2.GenerateRequest
    target: str
    def __init__(self, generation: _Optional[_Union[_generation_pb2.GenerateRequest, _Mapping]] = ..., target: _Optional[str] = ...) -> None: ...

class DraftResponse(_message.Message):
    __slots__ = ("event",)
    EVENT_FIELD_NUMBER: _ClassVar[int]
    event: _generation_pb2.GenerateResponse
    def __init__(self, event: _Optional[_Union[_generation_pb2.GenerateResponse, _Mapping]] = ...) -> None: ...
