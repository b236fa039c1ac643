"""q on the wire: exactly the numbers the token was drawn from, checked before anything is computed with them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from draftproof.sampling.draft_q import Dense, DraftQ, Lattice, MalformedQError, OneHot, Sparse, validate
from draftproof.v1 import distribution_pb2 as pb
from draftproof.wire import lattice_code

_FLOAT = np.dtype("<f4")


def encode(qs: Sequence[DraftQ]) -> list[pb.Distribution]:
    """The message of each well-formed q; floats keep their bits. All lattices are packed at once."""
    packed = iter(lattice_code.pack([q for q in qs if isinstance(q, Lattice)]))
    return [_lattice(q, *next(packed)) if isinstance(q, Lattice) else _float_or_one_hot(q) for q in qs]


def _lattice(q: Lattice, gap_bits: int, code: bytes) -> pb.Distribution:
    lattice = pb.Lattice(bits=q.bits, entries=len(q.ids), gap_bits=gap_bits, code=code)
    return pb.Distribution(lattice=lattice)


def _float_or_one_hot(q: Sparse | Dense | OneHot) -> pb.Distribution:
    match q:
        case Sparse():
            return pb.Distribution(sparse=pb.Sparse(id_deltas=_deltas(q.ids), masses=_float_bytes(q.masses)))
        case Dense():
            return pb.Distribution(dense=pb.Dense(masses=_float_bytes(q.masses)))
        case OneHot():
            return pb.Distribution(one_hot=pb.OneHot(token_id=q.token_id))


def decode(message: pb.Distribution, vocab_size: int) -> DraftQ:
    """The q a message stands for. Its arrays are read-only views of the message's bytes where they can be.

    Args:
        message: as received; nothing about it is trusted.
        vocab_size: V.

    Raises:
        MalformedQError: it isn't a distribution over V tokens.
    """
    q: DraftQ
    match message.WhichOneof("encoding"):
        case "lattice":
            sent = message.lattice
            q = lattice_code.unpack(sent.code, sent.entries, sent.gap_bits, sent.bits, vocab_size)
        case "sparse":
            masses = _floats(message.sparse.masses)
            q = Sparse(_ids(message.sparse.id_deltas, len(masses), vocab_size), masses)
        case "dense":
            q = Dense(_floats(message.dense.masses))
        case "one_hot":
            q = OneHot(message.one_hot.token_id)
        case _:
            raise MalformedQError("no encoding is set")
    validate(q, vocab_size)
    return q


def _deltas(ids: npt.NDArray[np.int64]) -> list[int]:
    """Strictly ascending ids [M] -> the first id and the gaps after it [M]."""
    deltas: list[int] = np.diff(ids, prepend=0).tolist()
    return deltas


def _ids(deltas: Sequence[int], values: int, vocab_size: int) -> npt.NDArray[np.int64]:
    """Gaps [M] -> ids int64 [M]. M is checked first: a message of one-byte gaps would grow tenfold when expanded."""
    entries = len(deltas)
    if entries != values:
        raise MalformedQError(f"{entries} ids for {values} values")
    if entries > vocab_size:
        raise MalformedQError(f"{entries} ids for a vocabulary of {vocab_size}")
    # uint32 gaps, at most V of them: far from overflowing int64.
    return np.cumsum(np.array(deltas, dtype=np.int64))


def _float_bytes(masses: npt.NDArray[np.float32]) -> bytes:
    return np.ascontiguousarray(masses, dtype=_FLOAT).tobytes()


def _floats(data: bytes) -> npt.NDArray[np.float32]:
    if len(data) % _FLOAT.itemsize:
        raise MalformedQError(f"{len(data)} bytes are not a whole number of float32 values")
    return np.frombuffer(data, dtype=_FLOAT)
