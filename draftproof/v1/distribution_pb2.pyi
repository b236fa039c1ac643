from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Distribution(_message.Message):
    __slots__ = ("lattice", "sparse", "dense", "one_hot")
    LATTICE_FIELD_NUMBER: _ClassVar[int]
    SPARSE_FIELD_NUMBER: _ClassVar[int]
    DENSE_FIELD_NUMBER: _ClassVar[int]
    ONE_HOT_FIELD_NUMBER: _ClassVar[int]
    lattice: Lattice
    sparse: Sparse
    dense: Dense
    one_hot: OneHot
    def __init__(self, lattice: _Optional[_Union[Lattice, _Mapping]] = ..., sparse: _Optional[_Union[Sparse, _Mapping]] = ..., dense: _Optional[_Union[Dense, _Mapping]] = ..., one_hot: _Optional[_Union[OneHot, _Mapping]] = ...) -> None: ...

class Lattice(_message.Message):
    __slots__ = ("bits", "entries", "gap_bits", "code")
    BITS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    GAP_BITS_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    bits: int
    entries: int
    gap_bits: int
    code: bytes
    def __init__(self, bits: _Optional[int] = ..., entries: _Optional[int] = ..., gap_bits: _Optional[int] = ..., code: _Optional[bytes] = ...) -> None: ...

class Sparse(_message.Message):
    __slots__ = ("id_deltas", "masses")
    ID_DELTAS_FIELD_NUMBER: _ClassVar[int]
    MASSES_FIELD_NUMBER: _ClassVar[int]
    id_deltas: _containers.RepeatedScalarFieldContainer[int]
    masses: bytes
    def __init__(self, id_deltas: _Optional[_Iterable[int]] = ..., masses: _Optional[bytes] = ...) -> None: ...

class Dense(_message.Message):
    __slots__ = ("masses",)
    MASSES_FIELD_NUMBER: _ClassVar[int]
    masses: bytes
    def __init__(self, masses: _Optional[bytes] = ...) -> None: ...

class OneHot(_message.Message):
    __slots__ = ("token_id",)
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    def __init__(self, token_id: _Optional[int] = ...) -> None: ...
