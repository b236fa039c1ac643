"""What draft and target must share before their first round, and how the first difference is found."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from draftproof.errors import FingerprintMismatchError, ProtocolError
from draftproof.v1 import fingerprint_pb2 as pb

DIGEST_BYTES = 4


def digest(tokens: Iterable[str]) -> bytes:
    """SHA-256 over all tokens in id order, each as its length in bytes (uint32, little-endian) and its UTF-8."""
    total = hashlib.sha256()
    for token in tokens:
        data = _bytes(token)
        total.update(len(data).to_bytes(4, "little"))
        total.update(data)
    return total.digest()


def token_digests(tokens: Iterable[str]) -> bytes:
    """First 4 bytes of the SHA-256 of each token, V x 4 bytes in id order."""
    return b"".join(hashlib.sha256(_bytes(token)).digest()[:DIGEST_BYTES] for token in tokens)


def first_difference(ours: bytes, theirs: bytes) -> int | None:
    """First id whose digests differ, or that only one side has; None if all are equal.

    Raises:
        ProtocolError: `theirs` isn't a whole number of digests.
    """
    if len(theirs) % DIGEST_BYTES:
        raise ProtocolError(f"token digests must be a multiple of {DIGEST_BYTES} bytes, got {len(theirs)}")
    if ours == theirs:
        return None
    shared = min(len(ours), len(theirs))
    differs = (i for i in range(0, shared, DIGEST_BYTES) if ours[i : i + DIGEST_BYTES] != theirs[i : i + DIGEST_BYTES])
    return next(differs, shared) // DIGEST_BYTES


def check(ours: pb.Fingerprint, theirs: pb.Fingerprint) -> None:
    """Passes if the two may work together.

    Raises:
        FingerprintMismatchError: metadata names the `field` and both values. Where it is `tokenizer_sha256` or
            `vocab_size`, `token_mismatch` can say more.
    """
    for field in ("sampling_contract", "vocab_size", "tokenizer_sha256"):
        mine, other = (_shown(getattr(side, field)) for side in (ours, theirs))
        if mine != other:
            raise FingerprintMismatchError(
                f"{field} differs: {ours.model or 'this side'} has {mine}, {theirs.model or 'the peer'} has {other}",
                metadata={"field": field, "ours": mine, "theirs": other},
            )


def token_mismatch(
    ours: pb.Fingerprint, theirs: pb.Fingerprint, tokens: Sequence[str], their_digests: bytes
) -> FingerprintMismatchError:
    """The mismatch of two vocabularies, naming the first token that differs.

    Args:
        ours: this side's fingerprint.
        theirs: the peer's.
        tokens: this side's vocabulary [V] in id order.
        their_digests: the peer's `token_digests`.

    Raises:
        ProtocolError: `their_digests` isn't a whole number of digests.
    """
    token_id = first_difference(token_digests(tokens), their_digests)
    names = f"{ours.model or 'this side'} and {theirs.model or 'the peer'}"
    if token_id is None:
        return FingerprintMismatchError(
            f"the fingerprints of {names} differ although their tokens are equal; are both the same release?"
        )
    metadata = {"field": "tokenizer_sha256", "token_id": str(token_id)}
    if token_id >= len(tokens):
        what = f"token {token_id} exists only on the peer"
    elif token_id * DIGEST_BYTES >= len(their_digests):
        what = f"token {token_id} ({tokens[token_id]!r}) exists only here"
    else:
        what = f"token {token_id} is {tokens[token_id]!r} here and another one on the peer"
    if token_id < len(tokens):
        metadata["token"] = tokens[token_id]
    return FingerprintMismatchError(
        f"{names} have different vocabularies: {what}; serve a draft with the target's own tokenizer", metadata=metadata
    )


def _bytes(token: str) -> bytes:
    # Byte-fallback vocabularies may hold lone surrogates.
    return token.encode("utf-8", "surrogatepass")


def _shown(value: bytes | int) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
