from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Fingerprint(_message.Message):
    __slots__ = ("tokenizer_sha256", "vocab_size", "sampling_contract", "model", "weights_sha256", "weights_version")
    TOKENIZER_SHA256_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_CONTRACT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_SHA256_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_VERSION_FIELD_NUMBER: _ClassVar[int]
    tokenizer_sha256: bytes
    vocab_size: int
    sampling_contract: int
    model: str
    weights_sha256: bytes
    weights_version: int
    def __init__(self, tokenizer_sha256: _Optional[bytes] = ..., vocab_size: _Optional[int] = ..., sampling_contract: _Optional[int] = ..., model: _Optional[str] = ..., weights_sha256: _Optional[bytes] = ..., weights_version: _Optional[int] = ...) -> None: ...
