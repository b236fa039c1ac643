"""q on the wire: exact round trips, and decoders that survive anything."""

from __future__ import annotations

import time
import tracemalloc

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from draftproof.sampling.draft_q import Dense, DraftQ, Lattice, MalformedQError, OneHot, Sparse, validate
from draftproof.v1 import distribution_pb2 as pb
from draftproof.wire.distribution import decode
from draftproof.wire.distribution import encode as encode_all
from tests.unit.wire.coder import bytes_of

V = 50
UINT32 = st.one_of(st.integers(0, 60), st.sampled_from([2**24, 2**31 - 1, 2**31, 2**32 - 1]), st.integers(0, 2**32 - 1))


def encode(q: DraftQ) -> pb.Distribution:
    (message,) = encode_all([q])
    return message


def floats(*values: float) -> bytes:
    return np.array(values, dtype="<f4").tobytes()


def arrays(q: DraftQ) -> list[object]:
    """All parts of a q, comparable bit by bit."""
    match q:
        case Lattice(bits, ids, counts):
            return [bits, ids.tolist(), counts.tolist()]
        case Sparse(ids, masses):
            return [ids.tolist(), masses.tobytes()]
        case Dense(masses):
            return [masses.tobytes()]
        case OneHot(token_id):
            return [token_id]


def lattice(bits: int, gaps: list[int], counts: list[int], gap_bits: int = 2, entries: int = 0) -> pb.Distribution:
    code = bytes_of(gaps, counts, gap_bits)
    return pb.Distribution(lattice=pb.Lattice(bits=bits, entries=entries or len(counts), gap_bits=gap_bits, code=code))


def sparse(deltas: list[int], masses: bytes) -> pb.Distribution:
    return pb.Distribution(sparse=pb.Sparse(id_deltas=deltas, masses=masses))


def dense(masses: bytes) -> pb.Distribution:
    return pb.Distribution(dense=pb.Dense(masses=masses))


@st.composite
def valid_q(draw: st.DrawFn) -> DraftQ:
    kind = draw(st.sampled_from(["lattice", "sparse", "dense", "one_hot"]))
    if kind == "one_hot":
        return OneHot(draw(st.integers(0, V - 1)))
    if kind == "lattice":
        bits = draw(st.integers(1, 24))
        size = min(V, 2**bits)
        ids = sorted(draw(st.sets(st.integers(0, V - 1), min_size=1, max_size=size)))
        cuts = draw(st.sets(st.integers(1, 2**bits - 1), min_size=len(ids) - 1, max_size=len(ids) - 1))
        counts = np.diff([0, *sorted(cuts), 2**bits])
        return Lattice(bits, np.array(ids, dtype=np.int64), counts.astype(np.int64))
    weights = st.lists(st.integers(0, 1000), min_size=V, max_size=V).filter(any)
    masses = np.array(draw(weights), dtype=np.float64)
    masses = (masses / masses.sum()).astype(np.float32)
    if kind == "dense":
        return Dense(masses)
    kept = np.flatnonzero(masses)
    return Sparse(kept.astype(np.int64), masses[kept])


@given(valid_q())
def test_round_trip_keeps_every_bit(q: DraftQ) -> None:
    message = encode(q)
    sent = message.SerializeToString()
    received = decode(pb.Distribution.FromString(sent), V)
    assert type(received) is type(q)
    assert arrays(received) == arrays(q)
    assert encode(received).SerializeToString() == sent


def test_sizes_on_the_wire() -> None:
    """A lattice of 128 entries is some 200 bytes beside its mantissas; a dense q is 4 V and a few more."""
    ids = np.arange(128, dtype=np.int64) * 300
    counts = np.full(128, 2**17, dtype=np.int64)
    assert encode(Lattice(24, ids, counts)).ByteSize() < 200 + 128 * 2 * 17 // 8 + 20
    assert encode(Dense(np.full(1000, 1e-3, dtype=np.float32))).ByteSize() < 4 * 1000 + 20


def test_non_contiguous_arrays_are_encoded_in_order() -> None:
    masses = np.array([0.25, 9, 0.75, 9], dtype=np.float32)[::2]
    assert encode(Dense(masses)).dense.masses == floats(0.25, 0.75)


MALFORMED = {
    "no encoding": pb.Distribution(),
    "empty lattice": pb.Distribution(lattice=pb.Lattice()),
    "empty sparse": pb.Distribution(sparse=pb.Sparse()),
    "empty dense": pb.Distribution(dense=pb.Dense()),
    "bits 0": lattice(0, [3], [1]),
    "bits 25": lattice(25, [3], [2**25]),
    "bits huge": lattice(2**32 - 1, [3], [1]),
    "counts off by one": lattice(3, [1, 1], [4, 5]),
    "a count beyond the sum": lattice(3, [1, 1], [4, 16]),
    "more entries than counts": lattice(2, [1], [2], entries=2),
    "fewer entries than counts": lattice(1, [1, 1], [1, 1], entries=1),
    "id beyond V": lattice(1, [V], [2]),
    "later id beyond V": lattice(1, [1, V - 2], [1, 1]),
    "a gap far beyond V": lattice(1, [2**30], [2], gap_bits=30),
    "more ids than V": lattice(10, [0] * (V + 1), [1] * (V + 1)),
    "more ids than counts of 1": lattice(1, [0] * 3, [1] * 3),
    "gap bits 32": lattice(1, [1], [2], gap_bits=32),
    "gap bits huge": pb.Distribution(lattice=pb.Lattice(bits=1, entries=1, gap_bits=2**32 - 1, code=bytes(9))),
    "odd bytes": dense(floats(*[1 / V] * V)[:-1]),
    "dense one short": dense(floats(*[1 / (V - 1)] * (V - 1))),
    "dense one long": dense(floats(*[1 / (V + 1)] * (V + 1))),
    "dense of bytes that say nothing": dense(b""),
    "NaN": sparse([1, 1], floats(float("nan"), 1)),
    "infinity": sparse([1, 1], floats(float("inf"), 1)),
    "infinities that cancel": sparse([1, 1], floats(float("inf"), float("-inf"))),
    "negative": sparse([1, 1], floats(-0.5, 1.5)),
    "sum 2e-4 above": sparse([1, 1], floats(0.5, 0.5002)),
    "sum 2e-4 below": sparse([1, 1], floats(0.5, 0.4998)),
    "sum 0": sparse([1, 1], floats(0, 0)),
    "largest floats": sparse([1, 1], floats(3.4e38, 3.4e38)),
    "sparse odd bytes": sparse([1, 1], floats(0.5, 0.5) + b"\0"),
    "sparse ids without masses": sparse([1, 1], b""),
    "one-hot beyond V": pb.Distribution(one_hot=pb.OneHot(token_id=V)),
    "one-hot huge": pb.Distribution(one_hot=pb.OneHot(token_id=2**32 - 1)),
}


@pytest.mark.parametrize("message", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_is_refused(message: pb.Distribution) -> None:
    with pytest.raises(MalformedQError):
        decode(message, V)


@pytest.mark.parametrize(
    "message",
    [
        lattice(24, [V - 1], [2**24], gap_bits=5),
        lattice(1, [0, V - 2], [1, 1], gap_bits=4),
        sparse([0, V - 1], floats(0.5, 0.50009)),
        sparse([4, 1], floats(-0.0, 1.0)),
        sparse([4, 1], floats(1e-45, 1.0)),
        dense(floats(1.0, *[0.0] * (V - 1))),
        pb.Distribution(one_hot=pb.OneHot()),
    ],
)
def test_edges_are_accepted(message: pb.Distribution) -> None:
    assert encode(decode(message, V)) == message


@st.composite
def hostile_message(draw: st.DrawFn) -> pb.Distribution:
    """Messages that are well formed as protobuf and often nearly a distribution."""
    if draw(st.booleans()):
        message = encode(draw(valid_q()))
    else:
        kind = draw(st.sampled_from(["lattice", "sparse", "dense", "one_hot", None]))
        message = pb.Distribution()
        if kind is not None:
            getattr(message, kind).SetInParent()
    for _ in range(draw(st.integers(0, 3))):
        match message.WhichOneof("encoding"):
            case "lattice":
                field = draw(st.sampled_from(["bits", "entries", "gap_bits", "code"]))
                if field == "code":
                    message.lattice.code = splice(draw, message.lattice.code)
                else:
                    setattr(message.lattice, field, draw(UINT32))
            case "sparse":
                if draw(st.booleans()):
                    mutate(draw, message.sparse.id_deltas)
                else:
                    message.sparse.masses = splice(draw, message.sparse.masses)
            case "dense":
                message.dense.masses = splice(draw, message.dense.masses)
            case "one_hot":
                message.one_hot.token_id = draw(UINT32)
    return message


def mutate(draw: st.DrawFn, numbers: list[int]) -> None:
    values = list(numbers)
    at = draw(st.integers(0, len(values)))
    values[at : at + draw(st.integers(0, 2))] = draw(st.lists(UINT32, max_size=3))
    del numbers[:]
    numbers.extend(values)


def splice(draw: st.DrawFn, data: bytes) -> bytes:
    at = draw(st.integers(0, len(data)))
    new = draw(st.one_of(st.binary(max_size=9), st.lists(st.floats(width=32), max_size=3).map(lambda x: floats(*x))))
    return data[:at] + new + data[at + draw(st.sampled_from([0, 4, len(new)])) :]


@given(hostile_message(), st.sampled_from([1, 2, V, V + 1, 2**18]))
@example(lattice(24, [2**31] * 3, [2**24] * 3, gap_bits=31), V)
def test_any_message_is_a_distribution_or_refused(message: pb.Distribution, vocab_size: int) -> None:
    try:
        q = decode(message, vocab_size)
    except MalformedQError:
        return
    validate(q, vocab_size)
    again = encode(q)
    assert arrays(decode(again, vocab_size)) == arrays(q)
    # a lattice may come with gap_bits that we wouldn't have chosen
    if again.lattice.gap_bits == message.lattice.gap_bits:
        assert again.SerializeToString(deterministic=True) == message.SerializeToString(deterministic=True)


def test_a_batch_is_encoded_in_order() -> None:
    first, second = Lattice(1, np.array([3, 7]), np.array([1, 1])), Lattice(2, np.array([9]), np.array([4]))
    qs: list[DraftQ] = [first, OneHot(5), second, Sparse(np.array([2]), np.ones(1, np.float32))]
    assert [arrays(decode(message, V)) for message in encode_all(qs)] == [arrays(q) for q in qs]
    assert encode_all([]) == []


@given(st.binary(max_size=200))
def test_any_bytes_are_a_distribution_or_refused(data: bytes) -> None:
    try:
        q = decode(pb.Distribution.FromString(data), V)
    except (DecodeError, MalformedQError):
        return
    validate(q, V)
    sent = encode(q).SerializeToString()
    assert encode(decode(pb.Distribution.FromString(sent), V)).SerializeToString() == sent


@pytest.mark.parametrize(
    "message",
    [
        lattice(24, [1] * 1_000_000, [1] * 1_000_000),
        pb.Distribution(lattice=pb.Lattice(bits=24, entries=V, code=b"\xff" * 4_000_000)),
        sparse([1] * 1_000_000, bytes(4_000_000)),
        pb.Distribution(lattice=pb.Lattice(bits=24, entries=2**32 - 1, gap_bits=31)),
        dense(bytes(16_000_000)),
    ],
    ids=["lattice", "ones alone", "sparse", "entries alone", "dense"],
)
def test_oversized_lists_are_refused_before_they_are_expanded(message: pb.Distribution) -> None:
    tracemalloc.start()
    start = time.perf_counter()
    with pytest.raises(MalformedQError):
        decode(message, V)
    elapsed = time.perf_counter() - start
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # One copy of the bytes that arrived, at most.
    assert peak < 20_000_000
    assert elapsed < 1.0
