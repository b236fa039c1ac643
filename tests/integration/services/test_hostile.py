"""Peers that lie, cheat or break things: what the contract says comes out, and the next request is unharmed."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import grpc
import numpy as np
import pytest
import torch

from draft_service.drafters.interface import OpenBlock
from draft_service.drafters.model import ModelDrafter
from draftproof.client import NO_RETRIES
from draftproof.errors import ProtocolError, RequestError, UnavailableError
from draftproof.rpc.server import Service, start_server
from draftproof.sampling.draft_q import Dense, Lattice, OneHot, Sparse, draw, quantise
from draftproof.sampling.rng import Draw, Purpose, random_words
from draftproof.serving.drafting import Proposal
from draftproof.v1 import distribution_pb2, target_pb2, target_pb2_grpc, verdict_pb2
from tests.integration.services.harness import (
    LETTERS,
    Kit,
    Options,
    RawDraft,
    fingerprint,
    model_drafter,
    proposals,
    random_q,
    raw_draft,
    table,
    until,
)


def floats(*masses: float) -> bytes:
    return struct.pack(f"<{len(masses)}f", *masses)


FLAT = [1 / LETTERS] * LETTERS
MALFORMED: dict[str, dict[str, Any]] = {
    "no encoding": {},
    "NaN masses": {"dense": {"masses": floats(float("nan"), *FLAT[1:])}},
    "infinite mass": {"sparse": {"id_deltas": [1], "masses": floats(float("inf"))}},
    "sum too large": {"dense": {"masses": floats(*FLAT[:-1], 0.2)}},
    "sum too small": {"sparse": {"id_deltas": [1, 1], "masses": floats(0.5, 0.4)}},
    "negative mass": {"sparse": {"id_deltas": [1, 1], "masses": floats(1.5, -0.5)}},
    "wrong vocabulary": {"dense": {"masses": floats(*[1 / 32] * 32)}},
    "torn float": {"dense": {"masses": floats(*FLAT)[:-1]}},
    # gaps 1 and LETTERS - 1: 0 1, then 26 zeros and a one; two counts of 1: 1 1
    "id out of range": {"lattice": {"bits": 1, "entries": 2, "code": bytes([0b01000000, 0, 0, 0b00000111])}},
    "counts don't sum": {"lattice": {"bits": 2, "entries": 2, "code": bytes([0b01101100])}},
    "fewer entries than said": {"lattice": {"bits": 1, "entries": 2, "code": bytes([0b01100000])}},
    "a code cut short": {"lattice": {"bits": 9, "entries": 2, "code": bytes([0b01100000, 0b00100000])}},
    "no code": {"lattice": {"bits": 1, "entries": 1}},
    "more bytes than entries": {"lattice": {"bits": 1, "entries": 2, "code": bytes([0b01111000, 0])}},
    "more entries than a vocabulary": {"lattice": {"bits": 24, "entries": 2**31, "code": bytes(100)}},
    "too many bits": {"lattice": {"bits": 25, "entries": 1, "code": bytes([0b01000000, 0, 0, 0b00100000, 0, 0, 0])}},
    "one-hot out of range": {"one_hot": {"token_id": LETTERS}},
}


async def honest_verdict(draft: RawDraft, key: bytes, block: Sequence[target_pb2.Proposal]) -> verdict_pb2.Verdict:
    """What a session with this key says to this block."""
    await draft.open(session=1000, key=key)
    verdict = (await draft.round(1, 3, block, session=1000)).verdict
    assert not verdict.HasField("refusal")
    await draft.send(1000, close=target_pb2.CloseSession())
    return verdict


def said(verdict: verdict_pb2.Verdict) -> tuple[Any, ...]:
    return verdict.accepted, verdict.examined, list(verdict.tokens), verdict.expected_accepted


@pytest.mark.parametrize("offset", [0, 2, 3])
@pytest.mark.parametrize("case", MALFORMED)
async def test_a_malformed_q_ends_the_block_before_it(kit: Kit, case: str, offset: int) -> None:
    target = await kit.target(Options())
    async with raw_draft(target.address) as draft:
        key = (await draft.open()).request_key
        block = proposals(key, 3, quantise(random_q(5, 4), 128, 12))
        expected = await honest_verdict(draft, key, block[:offset])
        # whatever the token is, malformed is malformed
        block[offset].q.CopyFrom(distribution_pb2.Distribution(**MALFORMED[case]))
        verdict = (await draft.round(1, 3, block)).verdict
        assert said(verdict) == said(expected)
        assert (verdict.refusal.offset, verdict.refusal.kind) == (offset, verdict_pb2.REFUSAL_KIND_MALFORMED_Q)
        assert verdict.refusal.message
        assert verdict.lossless
        assert target.count("refused_proposals_total", kind="malformed_q") == 1
        assert target.count("spec_decode_num_draft_tokens_total") == 2 * offset
        again = (await draft.round(2, 3 + len(verdict.tokens))).verdict
        assert again.tokens
        assert not again.HasField("refusal")


@pytest.mark.parametrize("offset", [0, 1, 3])
@pytest.mark.parametrize("wrong", ["another token", "no count", "out of range"])
async def test_a_lattice_draw_that_differs_is_replaced_by_the_target_s_own(kit: Kit, offset: int, wrong: str) -> None:
    target = await kit.target(Options())
    async with raw_draft(target.address) as draft:
        key = (await draft.open()).request_key
        qs = quantise(random_q(6, 4), 10, 12)
        block = proposals(key, 3, qs)
        expected = await honest_verdict(draft, key, block[: offset + 1])
        own = block[offset].token_id
        block[offset].token_id = {
            "another token": next(int(i) for i in qs[offset].ids if i != own),
            "no count": next(i for i in range(LETTERS) if i not in qs[offset].ids),
            "out of range": 2**32 - 1,
        }[wrong]
        verdict = (await draft.round(1, 3, block)).verdict
        assert said(verdict) == said(expected)
        assert (verdict.refusal.offset, verdict.refusal.kind) == (offset, verdict_pb2.REFUSAL_KIND_DRAW_MISMATCH)
        assert verdict.lossless
        assert target.count("refused_proposals_total", kind="draw_mismatch") == 1


async def test_a_one_hot_q_speaks_for_itself(kit: Kit) -> None:
    target = await kit.target(Options())
    async with raw_draft(target.address) as draft:
        key = (await draft.open()).request_key
        block = proposals(key, 3, [OneHot(4)], [9])
        expected = await honest_verdict(draft, key, proposals(key, 3, [OneHot(4)]))
        verdict = (await draft.round(1, 3, block)).verdict
        assert said(verdict) == said(expected)
        assert verdict.refusal.kind == verdict_pb2.REFUSAL_KIND_DRAW_MISMATCH


@pytest.mark.parametrize("token", [2, LETTERS, 2**32 - 1])
@pytest.mark.parametrize("encoding", ["sparse", "dense"])
async def test_a_float_q_without_mass_at_its_token_is_counted_as_dishonest(kit: Kit, token: int, encoding: str) -> None:
    target = await kit.target(Options())
    masses = random_q(7)[0].numpy().copy()
    masses[2] = 0
    masses /= masses.sum()
    ids = np.flatnonzero(masses)
    q = Dense(masses) if encoding == "dense" else Sparse(ids, masses[ids])
    async with raw_draft(target.address) as draft:
        key = (await draft.open()).request_key
        honest = proposals(key, 3, [*quantise(random_q(8), 128, 12)])
        expected = await honest_verdict(draft, key, honest)
        block = [*honest, *proposals(key, 4, [q], [token]), *honest]
        verdict = (await draft.round(1, 3, block)).verdict
        assert said(verdict) == said(expected)
        assert (verdict.refusal.offset, verdict.refusal.kind) == (1, verdict_pb2.REFUSAL_KIND_ZERO_MASS)
        assert not verdict.lossless
        assert target.count("refused_proposals_total", kind="zero_mass") == 1
        later = (await draft.round(2, 3 + len(verdict.tokens))).verdict
        assert not later.lossless, "the text so far may be bent"
        assert not later.HasField("refusal")
        await draft.open(session=2)
        assert (await draft.round(1, 3, session=2)).verdict.lossless


Cheat = Callable[[Proposal, int], Proposal]


def another_temperature(honest: Proposal, word: int) -> Proposal:
    if not isinstance(honest.q, Lattice):
        return honest
    q = torch.zeros(1, LETTERS, dtype=torch.float64)
    q[0, torch.from_numpy(honest.q.ids)] = torch.from_numpy(honest.q.counts).double() ** 0.5
    return Proposal(draw(quantise(q / q.sum(), 128, 12)[0], word), honest.q)


def swapped(honest: Proposal, word: int) -> Proposal:
    if not isinstance(honest.q, Lattice):
        return honest
    first, second = np.argsort(honest.q.counts)[-1], np.argsort(honest.q.counts)[-3]
    counts = honest.q.counts.copy()
    counts[[first, second]] = counts[[second, first]]
    return Proposal(honest.token_id, Lattice(honest.q.bits, honest.q.ids, counts))


def off_by_one(honest: Proposal, word: int) -> Proposal:
    return Proposal((honest.token_id + 1) % LETTERS, honest.q)


class Cheater(ModelDrafter):
    """Sends something else than it drew, and knows which blocks will show it first where."""

    def __init__(self, cheat: Cheat) -> None:
        honest = model_drafter(table(noise=0.1))
        super().__init__(honest._engine, honest._encode)
        self._cheat = cheat
        self.first: dict[tuple[bytes, int], int] = {}

    def step(self, blocks: Sequence[OpenBlock]) -> None:
        before = [len(block.proposals) for block in blocks]
        super().step(blocks)
        for block, count in zip(blocks, before, strict=True):
            if len(block.proposals) == count:
                continue
            place = Draw(block.sequence.key, block.sequence.position, count, Purpose.DRAFT)
            word = int(random_words([place])[0])
            sent = self._cheat(block.proposals[-1], word)
            block.proposals[-1] = sent
            own = sent.q.token_id if isinstance(sent.q, OneHot) else draw(sent.q, word)
            if own != sent.token_id:
                self.first.setdefault((place.key, place.block_start), count)


@pytest.mark.parametrize("cheat", [another_temperature, swapped, off_by_one])
async def test_cheats_are_counted_at_their_first_differing_draw(kit: Kit, cheat: Cheat) -> None:
    drafter = Cheater(cheat)
    # what is drafted ahead of a verdict that comes out otherwise is drawn at the same place, but never sent
    stack = await kit.stack(drafter=lambda: drafter, ahead=False)
    refused = 0
    for seed in range(4):
        async with stack.client.stream("hello", seed=seed, max_tokens=41, ignore_eos=True) as stream:
            position = 5
            async for chunk in stream:
                first = drafter.first.get((stream.start.request_key, position))  # type: ignore[union-attr]
                if first is not None:
                    assert chunk.examined == min(first + 1, 41 + 5 - position - 1)
                    refused += 1
                position += len(chunk.tokens)
            assert stream.completion.lossless
    assert refused > 10
    assert stack.target.count("refused_proposals_total", kind="draw_mismatch") == refused
    greedy = {"temperature": 0.0, "max_tokens": 40, "ignore_eos": True}
    drafted = await stack.client.generate("hello", **greedy)  # type: ignore[arg-type]
    assert drafted.token_ids == (await stack.direct.generate("hello", **greedy)).token_ids  # type: ignore[arg-type]


class ScriptedTarget(target_pb2_grpc.TargetServiceServicer):
    """Answers each frame of the draft with what `answers` gives for it."""

    def __init__(self, answers: Callable[[target_pb2.VerifyRequest], list[target_pb2.VerifyResponse]]) -> None:
        self._answers = answers
        self.streams = 0
        self.blocks = 0

    async def Verify(self, request_iterator: AsyncIterator[target_pb2.VerifyRequest], context: Any) -> None:
        self.streams += 1
        async for frame in request_iterator:
            if frame.WhichOneof("frame") == "hello":
                welcome = target_pb2.Welcome(
                    fingerprint=fingerprint(), max_gamma=16, max_context=256, max_message_bytes=1 << 20
                )
                await context.write(target_pb2.VerifyResponse(welcome=welcome))
                continue
            if frame.WhichOneof("frame") == "open":
                opened = target_pb2.SessionOpened(request_key=bytes(32), max_new_tokens=10)
                await context.write(target_pb2.VerifyResponse(session=frame.session, epoch=frame.epoch, opened=opened))
                continue
            self.blocks += frame.WhichOneof("frame") == "block"
            for answer in self._answers(frame):
                await context.write(answer)


def response(frame: target_pb2.VerifyRequest, tokens: int = 1, **changes: Any) -> target_pb2.VerifyResponse:
    verdict = verdict_pb2.Verdict(
        tokens=[verdict_pb2.Token(id=frame.round, text="x", source=verdict_pb2.TOKEN_SOURCE_TARGET)] * tokens,
        finish_reason=verdict_pb2.FINISH_REASON_LENGTH if frame.round == 3 else verdict_pb2.FINISH_REASON_UNSPECIFIED,
        lossless=True,
    )
    place = {"session": frame.session, "epoch": frame.epoch, "round": frame.round} | changes
    return target_pb2.VerifyResponse(verdict=verdict, **place)


async def against(
    kit: Kit, answers: Callable[[target_pb2.VerifyRequest], list[target_pb2.VerifyResponse]]
) -> tuple[ScriptedTarget, Any]:
    servicer = ScriptedTarget(answers)
    server = await start_server(
        [Service("draftproof.v1.TargetService", target_pb2_grpc.add_TargetServiceServicer_to_server, servicer)],
        "127.0.0.1:0",
    )
    draft = await kit.draft(Options(), str(server.address))
    await until(lambda: draft.serving)
    client = kit.client(draft.address, retries=NO_RETRIES)
    try:
        async with client.stream("hello", gamma=2, timeout=10.0) as stream:
            try:
                async for _ in stream:
                    pass
                return servicer, stream.completion
            except RequestError as error:
                return servicer, error
    finally:
        await draft.kill()
        await server.stop(0)


async def test_frames_that_answer_nothing_are_dropped(kit: Kit) -> None:
    def answers(frame: target_pb2.VerifyRequest) -> list[target_pb2.VerifyResponse]:
        if frame.WhichOneof("frame") != "block":
            return []
        return [
            response(frame, session=frame.session + 1),
            response(frame, epoch=frame.epoch + 1),
            response(frame, round=frame.round - 1),
            response(frame, round=frame.round + 1),
            response(frame),
            response(frame),
        ]

    _, completion = await against(kit, answers)
    assert completion.token_ids == (1, 2, 3)


async def test_a_verdict_without_tokens_fails_the_request(kit: Kit) -> None:
    servicer, error = await against(kit, lambda frame: [response(frame, tokens=0)])
    assert isinstance(error, ProtocolError)
    assert servicer.blocks == 1


async def test_a_target_that_always_breaks_off_is_given_up(kit: Kit) -> None:
    def answers(frame: target_pb2.VerifyRequest) -> list[target_pb2.VerifyResponse]:
        raise RuntimeError("a bug")

    servicer, error = await against(kit, answers)
    assert isinstance(error, UnavailableError)
    assert 2 <= servicer.blocks <= 10


async def test_garbage_bytes_end_one_stream(kit: Kit) -> None:
    target = await kit.target(Options())
    channel = grpc.aio.insecure_channel(target.address)
    call = channel.stream_stream("/draftproof.v1.TargetService/Verify")()
    await call.write(b"\xff" * 100)
    with pytest.raises(grpc.RpcError):
        await call.read()
    await channel.close()
    async with raw_draft(target.address) as draft:
        await draft.open()
        assert (await draft.round(1, 3)).verdict.tokens
