"""Threefry-4x64-20 against published vectors; uniforms at their ends; keys that tell every input apart."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.sampling import rng
from draftproof.sampling.rng import Draw, Purpose

ONES = 2**64 - 1
KEY = bytes(range(32))

# (counter, key, output): kat_vectors of Random123, then draws of PyPI's randomgen 2.5.1, which counts before it draws.
RANDOM123 = [
    (
        (0, 0, 0, 0),
        (0, 0, 0, 0),
        (0x09218EBDE6C85537, 0x55941F5266D86105, 0x4BD25E16282434DC, 0xEE29EC846BD2E40B),
    ),
    (
        (ONES, ONES, ONES, ONES),
        (ONES, ONES, ONES, ONES),
        (0x29C24097942BBA1B, 0x0371BBFB0F6F4E11, 0x3C231FFA33F83A1C, 0xCD29113FDE32D168),
    ),
    (
        (0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89),
        (0x452821E638D01377, 0xBE5466CF34E90C6C, 0xBE5466CF34E90C6C, 0xC0AC29B7C97C50DD),
        (0xA7E8FDE591651BD9, 0xBAAFD0C30138319B, 0x84A5C1A729E685B9, 0x901D406CCEBC1BA4),
    ),
]
RANDOMGEN = [
    (
        (0x800388BEE646389B, 0xF91E5254DAAF122B, 0x78EFA60F73738FAC, 0x4DD421C36FCC91D4),
        (0x4B1F13A1A32BFDCB, 0xC3877288A96261AD, 0x9F1E0EB647608D39, 0xF554C4BFBABF04B0),
        (0x63A3792F6BF3F1AA, 0x653A4163675B1060, 0xE0879F5F890AE74A, 0x09B79893118FF06E),
    ),
    (
        (0x9291FEE4ADE92A23, 0x08DC4B4441D95A2C, 0xF165BF7D14C62F1C, 0xFFF119652292CBE3),
        (0xDE4DE5AB58F9DC54, 0x048AF15B3841E95A, 0xDC488A163E4F43D1, 0xE9B869CBD3388305),
        (0x79E043831DD48718, 0x29B7184423D92633, 0xA1AE4FB10130EAEB, 0x1260D3EFFB81CE6A),
    ),
    (
        (0x69A2C04CFEE91A39, 0xB2996DA615728FAF, 0xDACA84490E3B83CF, 0x0C39978FD1C5DD2B),
        (0x73EDB7DA2ECFC2AF, 0xA970741390F45389, 0xE74949EB34ADA266, 0x98683814E361C565),
        (0xBCF7B4EBC4C8EC45, 0x05C9D9F38241B8E8, 0xE57E5673ED9BD4CE, 0x5236ED85E226FC39),
    ),
]
VECTORS = RANDOM123 + RANDOMGEN


def _words_match() -> bool:
    counters, keys, outputs = (np.array(column, dtype=np.uint64) for column in zip(*VECTORS, strict=True))
    many = np.array_equal(rng.words(keys, counters), outputs)
    few = [rng._quad(struct.pack("<4Q", *key), counter) for counter, key, _ in VECTORS]
    assert many == (few == [output for _, _, output in VECTORS])
    return many


def test_known_answers() -> None:
    assert _words_match()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("_ROUNDS", 16),
        ("_PARITY", 0x1BD11BDAA9FC1A23),
        ("_ROTATIONS", (*rng._ROTATIONS[:-1], (32, 31))),
        ("_ROTATIONS", (rng._ROTATIONS[1], rng._ROTATIONS[0], *rng._ROTATIONS[2:])),
    ],
)
def test_known_answers_catch_a_wrong_cipher(name: str, value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rng, name, value)
    assert not _words_match()


def test_random_words_place_key_and_counter_as_documented() -> None:
    counter, key, output = RANDOM123[2]
    packed = struct.pack("<4Q", *key)
    # The vector's purpose and node are no legal Draw by type, but any uint64 by value.
    draw = Draw(packed, counter[0], counter[1], counter[3], counter[2])  # type: ignore[arg-type]
    assert rng.random_words([draw]).tolist() == [output[0]]


def test_a_batch_gives_what_each_gives_alone() -> None:
    draws = [
        Draw(bytes([k]) * 32, start, offset, purpose, node)
        for k, start, offset, purpose, node in itertools.product(range(3), (0, 7), (0, 1), Purpose, (0, 5))
    ]
    batch = rng.random_words(draws)
    assert batch.dtype == np.uint64
    assert batch.tolist() == [rng.random_words([draw])[0] for draw in draws]
    assert rng.random_words(draws[::-1]).tolist() == batch[::-1].tolist()
    assert len(set(batch.tolist())) == len(draws), "some part of a draw doesn't matter"


def test_no_draws() -> None:
    assert rng.random_words([]).shape == (0,)
    assert rng.uniforms([]).shape == (0,)


def test_illegal_draws_are_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        rng.random_words([Draw(b"short", 0, 0, Purpose.NEXT)])
    with pytest.raises(OverflowError):
        rng.random_words([Draw(KEY, -1, 0, Purpose.NEXT)])
    with pytest.raises(OverflowError):
        rng.random_words([Draw(KEY, 2**64, 0, Purpose.NEXT)])


def test_uniforms_lie_in_the_half_open_interval() -> None:
    extreme = np.array([0, 1, 2**11 - 1, 2**11, 2**63, ONES - 2**11, ONES - 2**11 + 1, ONES], dtype=np.uint64)
    u = rng.unit(extreme)
    assert u.dtype == np.float64
    assert u[0] == u[2] == 0.0
    assert u[3] == 2.0**-53
    assert u[4] == 0.5
    assert u[-1] == u[-2] == 1 - 2.0**-53 < 1.0
    # What the shift is for: all 64 bits would round up to 1.
    assert np.float64(ONES) * 2.0**-64 == 1.0


def test_uniforms_are_uniform() -> None:
    n, cells = 40_000, 64
    for purpose in Purpose:
        u = rng.uniforms([Draw(KEY, i // 8, i % 8, purpose) for i in range(n)])
        observed = np.bincount((u * cells).astype(int), minlength=cells)
        chi2 = ((observed - n / cells) ** 2 / (n / cells)).sum()
        assert chi2 < 120, f"chi2(63) = {chi2:.1f}"
    a = rng.uniforms([Draw(KEY, i, 0, Purpose.ACCEPT) for i in range(n)])
    b = rng.uniforms([Draw(KEY, i, 0, Purpose.NEXT) for i in range(n)])
    assert abs(np.corrcoef(a, b)[0, 1]) < 5 / n**0.5
    assert abs(np.corrcoef(a[1:], a[:-1])[0, 1]) < 5 / n**0.5


Derive = Callable[[int, Sequence[int], int, int], bytes]
# Inputs that differ, each by something a careless encoding loses: order, boundaries, width, zero, length.
INPUTS: list[tuple[int, list[int], int, int]] = [
    (0, [], 0, 0),
    (1, [], 0, 0),
    (0, [], 1, 0),
    (0, [], 0, 1),
    (2**32, [], 0, 0),
    (2**64 - 1, [], 0, 0),
    (0, [0], 0, 0),
    (0, [0, 0], 0, 0),
    (0, [1, 2], 0, 0),
    (0, [2, 1], 0, 0),
    (0, [12], 0, 0),
    (0, [1 + 2 * 2**32], 0, 0),
    (0, [256], 0, 0),
    (1, [2], 3, 4),
    (4, [3], 2, 1),
    (1, [23], 4, 5),
    (12, [3], 4, 5),
    (1, [2, 3], 4, 5),
]


def _collisions(derive: Derive) -> int:
    return len(INPUTS) - len({derive(*values) for values in INPUTS})


def test_keys_differ_wherever_an_input_differs() -> None:
    assert _collisions(rng.derive_key) == 0
    assert all(len(rng.derive_key(*values)) == rng.KEY_BYTES for values in INPUTS)
    # Part of the contract: the key outlives processes and versions.
    assert (
        rng.derive_key(42, [1, 2, 3], 0, 0).hex() == "a35c57c7cb69f611ed3bb4b06e5539a16bdb5a9e17851d77e876f05fea4d1403"
    )


def test_the_collision_check_catches_careless_encodings() -> None:
    def digits(seed: int, prompt: Sequence[int], sample: int, version: int) -> bytes:
        return "".join(map(str, [seed, *prompt, sample, version])).encode()

    def narrow(seed: int, prompt: Sequence[int], sample: int, version: int) -> bytes:
        return repr([v % 2**32 for v in (seed, *prompt, sample, version)]).encode()

    def unordered(seed: int, prompt: Sequence[int], sample: int, version: int) -> bytes:
        return repr((seed, sorted(prompt), sample, version)).encode()

    def without_version(seed: int, prompt: Sequence[int], sample: int, version: int) -> bytes:
        return repr((seed, list(prompt), sample)).encode()

    for careless in (digits, narrow, unordered, without_version):
        assert _collisions(careless) > 0, careless.__name__


uint64 = st.integers(0, 2**64 - 1)
inputs = st.tuples(uint64, st.lists(uint64, max_size=4), uint64, uint64)


@given(inputs, inputs)
def test_keys_are_equal_only_for_equal_inputs(
    a: tuple[int, list[int], int, int], b: tuple[int, list[int], int, int]
) -> None:
    assert (rng.derive_key(*a) == rng.derive_key(*b)) == (a == b)


def test_a_seed_out_of_range_is_no_key() -> None:
    with pytest.raises(struct.error):
        rng.derive_key(-1, [1], 0, 0)
    with pytest.raises(OverflowError):
        rng.derive_key(0, [-1], 0, 0)


def test_fresh_keys_are_fresh() -> None:
    keys = {rng.fresh_key() for _ in range(100)}
    assert len(keys) == 100
    assert {len(key) for key in keys} == {rng.KEY_BYTES}
