"""Counter-based random numbers: Threefry-4x64 with 20 rounds (Salmon et al. 2011), in numpy.

A number is a pure function of (request key; block start, offset in the block, tree node, purpose). Nothing is consumed,
so a request draws the same numbers alone or among any batch mates, and a retried block draws them again.
"""

from __future__ import annotations

import hashlib
import secrets
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

KEY_BYTES = 32

_ROTATIONS = ((14, 16), (52, 57), (23, 40), (5, 37), (25, 33), (46, 12), (58, 22), (32, 32))
_PARITY = 0x1BD11BDAA9FC1A22
_ROUNDS = 20
_PERSON = b"draftproof.key.1"
_MASK = 2**64 - 1
_FEW = 12
"""Up to as many draws Python's own integers are faster than numpy, whose operations take a microsecond each."""


class Purpose(IntEnum):
    """What a number is for; numbers of different purposes never coincide."""

    DRAFT = 0
    """The draft's own draw of a proposal."""
    ACCEPT = 1
    """The target's test of a proposal."""
    NEXT = 2
    """The target's draw from the residual, the bonus distribution or plain p."""
    RACE = 3
    """Noise that draft and target share under the coupled rule: (position, 0, cell of 64 tokens) and
    (position, 1, group of four tokens)."""


@dataclass(frozen=True, slots=True)
class Draw:
    """Where one random number belongs.

    Attributes:
        key: the request's key, 32 bytes.
        block_start: position where the block began, counted in tokens from the original prompt.
        offset: position in the block.
        purpose: what the number is for.
        node: node of a token tree, 0 in a chain.
    """

    key: bytes
    block_start: int
    offset: int
    purpose: Purpose
    node: int = 0


def words(keys: NDArray[np.uint64], counters: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Threefry-4x64-20 of each row.

    Args:
        keys: uint64 [N, 4].
        counters: uint64 [N, 4].

    Returns:
        uint64 [N, 4].
    """
    key = [np.ascontiguousarray(keys[:, i], dtype=np.uint64) for i in range(4)]
    key.append(key[0] ^ key[1] ^ key[2] ^ key[3] ^ np.uint64(_PARITY))
    x = [counters[:, i] + key[i] for i in range(4)]
    spare = np.empty_like(x[0])
    for round_index in range(_ROUNDS):
        a, b = (1, 3) if round_index % 2 == 0 else (3, 1)
        left, right = _ROTATIONS[round_index % 8]
        x[0] += x[a]
        _rotate(x[a], left, spare)
        x[a] ^= x[0]
        x[2] += x[b]
        _rotate(x[b], right, spare)
        x[b] ^= x[2]
        if round_index % 4 == 3:
            injection = round_index // 4 + 1
            for i in range(4):
                x[i] += key[(injection + i) % 5]
            x[3] += np.uint64(injection)
    return np.stack(x, axis=1)


def _rotate(x: NDArray[np.uint64], bits: int, spare: NDArray[np.uint64]) -> None:
    """In place; `spare` is as large as x."""
    np.left_shift(x, np.uint64(bits), out=spare)
    x >>= np.uint64(64 - bits)
    x |= spare


def _quad(key: bytes, counter: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """`words` of one row."""
    k0, k1, k2, k3 = struct.unpack("<4Q", key)
    k = (k0, k1, k2, k3, k0 ^ k1 ^ k2 ^ k3 ^ _PARITY)
    x0, x1, x2, x3 = ((c + part) & _MASK for c, part in zip(counter, k[:4], strict=True))
    for round_index in range(0, _ROUNDS, 2):
        left, right = _ROTATIONS[round_index % 8]
        x0 = (x0 + x1) & _MASK
        x1 = (x1 << left & _MASK | x1 >> 64 - left) ^ x0
        x2 = (x2 + x3) & _MASK
        x3 = (x3 << right & _MASK | x3 >> 64 - right) ^ x2
        left, right = _ROTATIONS[round_index % 8 + 1]
        x0 = (x0 + x3) & _MASK
        x3 = (x3 << left & _MASK | x3 >> 64 - left) ^ x0
        x2 = (x2 + x1) & _MASK
        x1 = (x1 << right & _MASK | x1 >> 64 - right) ^ x2
        if round_index % 4 == 2:
            n = round_index // 4 + 1
            x0 = (x0 + k[n % 5]) & _MASK
            x1 = (x1 + k[(n + 1) % 5]) & _MASK
            x2 = (x2 + k[(n + 2) % 5]) & _MASK
            x3 = (x3 + k[(n + 3) % 5] + n) & _MASK
    return x0, x1, x2, x3


def key_words(key: bytes) -> NDArray[np.uint64]:
    """A request key as the generator's key, uint64 [4].

    Raises:
        ValueError: it isn't 32 bytes long.
    """
    if len(key) != KEY_BYTES:
        raise ValueError(f"a request key has {KEY_BYTES} bytes")
    return np.frombuffer(key, dtype="<u8").astype(np.uint64, copy=False)


def random_quads(draws: Sequence[Draw]) -> NDArray[np.uint64]:
    """All four output words of each draw, in one call for the batch.

    Returns:
        uint64 [N, 4].

    Raises:
        ValueError: a key isn't 32 bytes long.
        OverflowError: a counter is not in [0, 2**64).
    """
    if any(len(draw.key) != KEY_BYTES for draw in draws):
        raise ValueError(f"a request key has {KEY_BYTES} bytes")
    places = [(d.block_start, d.offset, d.node, int(d.purpose)) for d in draws]
    counters = np.array(places, dtype=np.uint64).reshape(-1, 4)
    if len(draws) <= _FEW:
        quads = [_quad(draw.key, place) for draw, place in zip(draws, places, strict=True)]
        return np.array(quads, dtype=np.uint64).reshape(-1, 4)
    keys = np.frombuffer(b"".join(draw.key for draw in draws), dtype="<u8").reshape(-1, 4).astype(np.uint64, copy=False)
    return words(keys, counters)


def random_words(draws: Sequence[Draw]) -> NDArray[np.uint64]:
    """The first output word of each draw, as `random_quads`; uint64 [N]."""
    return np.ascontiguousarray(random_quads(draws)[:, 0])


def unit(words_: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Words to floats in [0, 1): the upper 53 bits, so that 1 is never reached. uint64 [...] -> float64 [...]."""
    return (words_ >> np.uint64(11)).astype(np.float64) * 2.0**-53


def uniforms(draws: Sequence[Draw]) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1) with 53 bits, in one call for the batch. Returns float64 [N]."""
    return unit(random_words(draws))


def derive_key(seed: int, prompt_ids: Sequence[int], sample_index: int, weights_version: int) -> bytes:
    """The request key of a seeded request, 32 bytes.

    The hashed text is unambiguous: four fixed-width fields, the last being the number of ids, then the ids.

    Raises:
        struct.error: seed, sample_index or weights_version is not in [0, 2**64).
        OverflowError: a prompt id is not in [0, 2**64).
    """
    head = struct.pack("<QQQQ", seed, sample_index, weights_version, len(prompt_ids))
    body = np.array(prompt_ids, dtype=np.uint64).astype("<u8").tobytes()
    return hashlib.blake2b(head + body, digest_size=KEY_BYTES, person=_PERSON).digest()


def fresh_key() -> bytes:
    """A key from the system's entropy, for requests without a seed."""
    return secrets.token_bytes(KEY_BYTES)
