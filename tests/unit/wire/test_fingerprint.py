"""The handshake: which fields must be equal, and how the first token that differs is named."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.errors import FingerprintMismatchError, ProtocolError
from draftproof.v1 import fingerprint_pb2 as pb
from draftproof.wire.fingerprint import check, digest, first_difference, token_digests, token_mismatch

TOKENS = st.lists(st.text(max_size=3), max_size=8)


def fingerprint(tokens: list[str], *, contract: int = 1, model: str = "m") -> pb.Fingerprint:
    return pb.Fingerprint(
        tokenizer_sha256=digest(tokens), vocab_size=len(tokens), sampling_contract=contract, model=model
    )


@given(TOKENS, TOKENS)
def test_digest_is_unambiguous(a: list[str], b: list[str]) -> None:
    assert (digest(a) == digest(b)) == (a == b)


def test_digest_is_the_documented_one() -> None:
    """Other implementations of the protocol depend on these bytes."""
    assert digest(["a", "γ"]) == hashlib.sha256(b"\1\0\0\0a\2\0\0\0\xce\xb3").digest()
    assert token_digests(["a"]) == hashlib.sha256(b"a").digest()[:4]


def test_lone_surrogates_have_digests() -> None:
    assert digest(["\ud800"]) != digest(["\ud801"])
    assert len(token_digests(["\ud800"])) == 4


@given(TOKENS, TOKENS)
def test_first_difference(a: list[str], b: list[str]) -> None:
    expected = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    found = first_difference(token_digests(a), token_digests(b))
    assert found == (None if a == b else expected)


def test_torn_digests_are_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="multiple of 4"):
        first_difference(b"", b"abc")


def test_equal_fingerprints_pass_whatever_the_weights() -> None:
    ours, theirs = fingerprint(["a"], model="big"), fingerprint(["a"], model="small")
    theirs.weights_sha256 = bytes(32)
    theirs.weights_version = 3
    check(ours, theirs)


@pytest.mark.parametrize(
    ("theirs", "field"),
    [
        (fingerprint(["a", "c"]), "tokenizer_sha256"),
        (fingerprint(["a"]), "vocab_size"),
        (fingerprint(["a", "b"], contract=2), "sampling_contract"),
        (pb.Fingerprint(), "sampling_contract"),
    ],
)
def test_each_field_that_differs_is_named(theirs: pb.Fingerprint, field: str) -> None:
    with pytest.raises(FingerprintMismatchError, match=field) as caught:
        check(fingerprint(["a", "b"]), theirs)
    assert caught.value.metadata["field"] == field
    assert caught.value.metadata["ours"] != caught.value.metadata["theirs"]


@pytest.mark.parametrize(
    ("theirs", "token_id", "text"),
    [
        (["a", "x", "c"], 1, "token 1 is 'b' here"),
        (["a", "b"], 2, "only here"),
        (["a", "b", "c", "d"], 3, "only on the peer"),
        ([], 0, "only here"),
    ],
)
def test_the_first_token_that_differs_is_named(theirs: list[str], token_id: int, text: str) -> None:
    tokens = ["a", "b", "c"]
    error = token_mismatch(fingerprint(tokens), fingerprint(theirs), tokens, token_digests(theirs))
    assert error.metadata["token_id"] == str(token_id)
    assert text in error.message


def test_digests_that_agree_after_all_are_said_to() -> None:
    tokens = ["a"]
    error = token_mismatch(fingerprint(tokens), fingerprint(tokens, contract=2), tokens, token_digests(tokens))
    assert "their tokens are equal" in error.message
