"""The verify stream, frame by frame: what is stale, what comes twice, what comes out of order."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from draftproof.errors import FingerprintMismatchError, ProtocolError
from draftproof.rpc.status import from_rpc_error
from draftproof.sampling.draft_q import quantise
from draftproof.testing.table import ByteTokenizer
from draftproof.v1 import error_pb2, fingerprint_pb2, target_pb2, verdict_pb2
from draftproof.wire import fingerprint as wire_fingerprint
from target_service import stream as target_stream
from target_service.verifier import VerifierConfig
from tests.integration.services.harness import (
    LETTERS,
    PATIENCE,
    Kit,
    Options,
    RawDraft,
    fingerprint,
    letters,
    model_drafter,
    proposals,
    random_q,
    raw_draft,
    table,
    until,
)


async def test_stale_frames_are_dropped_and_counted(kit: Kit) -> None:
    target = await kit.target(Options())
    async with raw_draft(target.address) as draft:
        opened = await draft.open(epoch=2)
        await draft.send(epoch=1, round=1, block=target_pb2.Block(start=3))
        await draft.send(epoch=3, round=1, block=target_pb2.Block(start=3))
        await draft.send(epoch=2, open=target_pb2.OpenSession(prompt_ids=[1]))
        await draft.send(epoch=1, close=target_pb2.CloseSession())
        await draft.send(session=99, round=1, block=target_pb2.Block(start=3))
        first = (await draft.round(1, 3, epoch=2)).verdict
        second = (await draft.round(2, 4, epoch=2)).verdict
        await draft.send(epoch=2, round=1, block=target_pb2.Block(start=3))
        third = await draft.round(3, 5, epoch=2)
        assert third.round == 3
        assert (target.count("stale_frames_total", what="epoch")) == 4
        assert (target.count("stale_frames_total", what="session")) == 1
        assert (target.count("stale_frames_total", what="round")) == 1
        await draft.send(session=99, close=target_pb2.CloseSession())
        # none of it left a trace in the text
        again = await draft.open(epoch=3, key=opened.request_key)
        assert again.request_key == opened.request_key
        tokens = [(await draft.round(n, 2 + n, epoch=3)).verdict.tokens[0] for n in (1, 2, 3)]
        assert tokens == [first.tokens[0], second.tokens[0], third.verdict.tokens[0]]


async def test_a_repeated_round_gets_the_verdict_it_already_had(kit: Kit) -> None:
    engine = table()
    target = await kit.target(Options(engine=engine))
    async with raw_draft(target.address) as draft:
        key = (await draft.open(max_tokens=2)).request_key
        block = proposals(key, 3, quantise(random_q(1), 128, 12))
        verdict = await draft.round(1, 3, block)
        passes = engine.passes
        assert await draft.round(1, 3, block) == verdict
        assert await draft.round(1, 3, []) == verdict, "whatever it holds the second time"
        assert engine.passes == passes
        left = 2 - len(verdict.verdict.tokens)
        last = verdict
        for _ in range(left):
            last = await draft.round(2, 4)
        assert last.verdict.finish_reason == verdict_pb2.FINISH_REASON_LENGTH
        passes = engine.passes
        assert await draft.round(last.round, 9) == last, "after the end of the session"
        assert engine.passes == passes
        assert target.count("rounds_total") == 1 + left
        error = (await draft.round(last.round + 1, 5)).error
        assert error.reason == error_pb2.ERROR_REASON_PROTOCOL
        assert "after the session ended" in error.message


async def test_a_round_sent_twice_before_its_verdict_is_verified_once(kit: Kit) -> None:
    target = await kit.target(Options(engine=table(delay=0.05)))
    async with raw_draft(target.address) as draft:
        await draft.open()
        for _ in range(3):
            await draft.send(round=1, block=target_pb2.Block(start=3))
        assert (await draft.receive()).verdict.tokens
        await draft.nothing()
        assert target.count("rounds_total") == 1


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        ({"round": 1, "block": target_pb2.Block(start=9)}, "block starts at 9, the session is at 3"),
        ({"round": 1, "block": target_pb2.Block(start=3, proposals=[target_pb2.Proposal()] * 17)}, "at most 16"),
        ({"hello": target_pb2.Hello()}, "hello is not allowed here"),
        ({}, "None is not allowed here"),
    ],
)
async def test_what_the_protocol_forbids_fails_one_session(kit: Kit, frame: dict[str, Any], words: str) -> None:
    target = await kit.target(Options())
    async with raw_draft(target.address) as draft:
        await draft.open(session=1)
        await draft.open(session=2)
        await draft.send(session=1, **frame)
        answer = await draft.receive()
        assert answer.session == 1
        assert words in answer.error.message
        assert (await draft.round(1, 3, session=2)).verdict.tokens


async def test_two_rounds_in_flight_are_refused(kit: Kit) -> None:
    target = await kit.target(Options(engine=table(delay=0.05)))
    async with raw_draft(target.address) as draft:
        await draft.open()
        await draft.send(round=1, block=target_pb2.Block(start=3))
        await draft.send(round=2, block=target_pb2.Block(start=4))
        error = (await draft.receive()).error
        assert error.reason == error_pb2.ERROR_REASON_PROTOCOL
        assert "before the verdict of round 1" in error.message
        await draft.nothing()


async def test_a_block_before_the_slot_is_refused(kit: Kit) -> None:
    target = await kit.target(Options(engine=table(slots=1)))
    async with raw_draft(target.address) as draft:
        await draft.open(session=1)
        await draft.send(2, open=target_pb2.OpenSession(prompt_ids=[1]))
        error = (await draft.round(1, 1, session=2)).error
        assert error.reason == error_pb2.ERROR_REASON_PROTOCOL
        assert "before the session was open" in error.message
        assert (await draft.round(1, 3, session=1)).verdict.tokens


@pytest.mark.parametrize(
    ("open_session", "field"),
    [
        (target_pb2.OpenSession(), "prompt_ids"),
        (target_pb2.OpenSession(prompt_ids=[1, LETTERS]), "prompt_ids[1]"),
        (target_pb2.OpenSession(prompt_ids=[1], output_ids=[LETTERS]), "output_ids[0]"),
        (target_pb2.OpenSession(prompt_ids=[1], request_key=b"short"), "request_key"),
        (target_pb2.OpenSession(prompt_ids=[1] * 256), "prompt"),
        (target_pb2.OpenSession(prompt_ids=[1], sampling={"temperature": float("nan")}), "temperature"),
        (target_pb2.OpenSession(prompt_ids=[1], sampling={"logit_bias": {LETTERS: 1.0}}), "logit_bias"),
        (target_pb2.OpenSession(prompt_ids=[1], output_ids=[1, 2], sampling={"max_tokens": 2}), "output_ids"),
    ],
)
async def test_a_wrong_opening_names_its_field(kit: Kit, open_session: target_pb2.OpenSession, field: str) -> None:
    target = await kit.target(Options())
    async with raw_draft(target.address) as draft:
        await draft.send(open=open_session)
        error = (await draft.receive()).error
        assert error.metadata["field"].startswith(field)
        assert (await draft.open(session=2)).max_new_tokens == 64


async def _end(draft: RawDraft) -> Exception:
    """How the stream ends."""
    with pytest.raises(grpc.RpcError) as caught:
        await asyncio.wait_for(_read_on(draft), PATIENCE)
    return from_rpc_error(caught.value)


async def _read_on(draft: RawDraft) -> None:
    while await draft.call.read() is not grpc.aio.EOF:
        pass
    await draft.call


async def test_a_stream_that_doesn_t_say_hello(kit: Kit) -> None:
    target = await kit.target(Options())
    async with raw_draft(target.address, hello=False) as draft:
        await draft.send(block=target_pb2.Block())
        assert isinstance(await _end(draft), ProtocolError)


async def test_a_stream_that_says_nothing_is_ended(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_stream, "_HANDSHAKE_SECONDS", 0.2)
    target = await kit.target(Options())
    async with raw_draft(target.address, hello=False) as draft:
        await draft.call.wait_for_connection()
        assert "no handshake within 0.2 s" in str(await _end(draft))


class OtherTokens(ByteTokenizer):
    """Differs at token 5."""

    def token(self, token_id: int) -> str:
        return "other" if token_id == 5 else super().token(token_id)


async def test_a_mismatch_names_the_first_token_that_differs(kit: Kit) -> None:
    target = await kit.target(Options())
    other = OtherTokens(LETTERS, first_byte=ord("a"))
    async with raw_draft(target.address, hello=False) as draft:
        await draft.send(0, 0, hello=target_pb2.Hello(fingerprint=fingerprint(other), drafter="raw"))
        assert (await draft.receive()).WhichOneof("frame") == "token_digests_query"
        digests = wire_fingerprint.token_digests([other.token(i) for i in range(LETTERS)])
        await draft.send(0, 0, token_digests=target_pb2.TokenDigests(digests=digests))
        error = await _end(draft)
    assert isinstance(error, FingerprintMismatchError)
    assert error.code == "FAILED_PRECONDITION"
    assert error.metadata["token_id"] == "5"
    assert repr(letters().token(5)) in error.message


@pytest.mark.parametrize(
    "change",
    [
        {"sampling_contract": 99},
        {"vocab_size": LETTERS + 1},
        {"tokenizer_sha256": b"\0" * 32},
    ],
)
async def test_every_compared_field_is_compared(kit: Kit, change: dict[str, Any]) -> None:
    target = await kit.target(Options())
    theirs = fingerprint_pb2.Fingerprint()
    theirs.CopyFrom(fingerprint())
    for field, value in change.items():
        setattr(theirs, field, value)
    async with raw_draft(target.address, hello=False) as draft:
        await draft.send(0, 0, hello=target_pb2.Hello(fingerprint=theirs))
        if "sampling_contract" not in change:
            assert (await draft.receive()).WhichOneof("frame") == "token_digests_query"
            digests = wire_fingerprint.token_digests([letters().token(i) for i in range(LETTERS)])
            await draft.send(0, 0, token_digests=target_pb2.TokenDigests(digests=digests))
        assert isinstance(await _end(draft), FingerprintMismatchError)


@pytest.mark.parametrize("vocabulary", ["other token", "longer", "shorter"])
async def test_a_draft_that_doesn_t_fit_stops_with_one_clear_line(kit: Kit, vocabulary: str) -> None:
    target = await kit.target(Options())
    tokenizer = {
        "other token": OtherTokens(LETTERS, first_byte=ord("a")),
        "longer": ByteTokenizer(LETTERS + 2, first_byte=ord("a")),
        "shorter": ByteTokenizer(LETTERS - 1, first_byte=ord("a")),
    }[vocabulary]
    draft = await kit.draft(
        Options(tokenizer=tokenizer, drafter=lambda: model_drafter(type(table())(tokenizer.vocab_size, noise=0.5))),
        target.address,
    )
    error = await draft.failed()
    assert isinstance(error, FingerprintMismatchError)
    assert "\n" not in error.message
    assert error.metadata["token_id"] == {"other token": "5", "longer": "26", "shorter": "25"}[vocabulary]
    assert not draft.serving


async def test_half_a_stream_then_silence_is_freed_by_the_idle_timeout(kit: Kit) -> None:
    target = await kit.target(Options(verifier=VerifierConfig(idle_timeout=0.3)))
    async with raw_draft(target.address) as draft:
        await draft.open(session=1)
        await draft.open(session=2, max_tokens=1)
        assert (await draft.round(1, 3, session=2)).verdict.finish_reason
        error = (await draft.receive()).error
        assert error.reason == error_pb2.ERROR_REASON_DEADLINE_EXCEEDED
        assert "idle_timeout" in error.message
        await until(lambda: not target.app._verifier._sessions)  # type: ignore[union-attr]
        assert (await draft.open(session=3)).max_new_tokens


async def test_an_idle_session_costs_no_compute(kit: Kit) -> None:
    engine = table()
    target = await kit.target(Options(engine=engine))
    async with raw_draft(target.address) as draft:
        await draft.open(prompt=[1] * 50)
        assert (await draft.round(1, 50)).verdict.tokens
        passes = engine.passes
        await asyncio.sleep(0.5)
        assert engine.passes == passes
        assert (await draft.round(2, 51)).verdict.tokens
        assert engine.passes == passes + 1
