"""A session on the link, over a link that the test plays."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from draft_service.link import TargetLink
from draft_service.link_session import MAX_LOSSES, LinkSession
from draftproof.errors import (
    DrainingError,
    InternalError,
    OverloadedError,
    PeerUnavailableError,
    PrefixLostError,
    ProtocolError,
    RequestError,
)
from draftproof.v1 import target_pb2, verdict_pb2
from draftproof.wire import error as wire_error


class Link:
    """Keeps what is sent; `answers` are given to the frames in order, one each."""

    def __init__(self, *answers: Any) -> None:
        self.sent: list[target_pb2.VerifyRequest] = []
        self.answers = list(answers)
        self.forgotten = 0
        self.learned: list[bytes] = []
        self.session: LinkSession | None = None

    def send(self, frame: target_pb2.VerifyRequest) -> None:
        copy = target_pb2.VerifyRequest()
        copy.CopyFrom(frame)
        self.sent.append(copy)
        if copy.HasField("halt"):
            return
        answer = self.answers.pop(0)
        assert self.session is not None
        if answer == "lost":
            asyncio.get_running_loop().call_soon(self.session.connection_lost)
        elif isinstance(answer, Exception) and not isinstance(answer, RequestError):
            raise answer
        else:
            asyncio.get_running_loop().call_soon(self.session.receive, self._frame(frame, answer))

    def _frame(self, to: target_pb2.VerifyRequest, answer: Any) -> target_pb2.VerifyResponse:
        place = {"session": to.session, "epoch": to.epoch, "round": to.round}
        if isinstance(answer, RequestError):
            return target_pb2.VerifyResponse(error=wire_error.to_proto(answer), **place)
        if answer == "opened" or isinstance(answer, bytes):
            weights = answer if isinstance(answer, bytes) else b""
            answered = target_pb2.SessionOpened(request_key=b"k" * 32, weights_sha256=weights)
            return target_pb2.VerifyResponse(opened=answered, **place)
        verdict = verdict_pb2.Verdict(
            tokens=[verdict_pb2.Token(id=token) for token in answer], unaided=to.block.unaided
        )
        return target_pb2.VerifyResponse(verdict=verdict, **place)

    async def wait_up(self) -> None:
        pass

    def unavailable(self) -> PeerUnavailableError:
        return PeerUnavailableError("the target can't be reached")

    def learn(self, opened: target_pb2.SessionOpened) -> None:
        self.learned.append(opened.weights_sha256)

    def forget(self, session: LinkSession) -> None:
        self.forgotten += 1


async def opened(*answers: Any) -> tuple[LinkSession, Link]:
    link = Link("opened", *answers)
    session = LinkSession(cast(TargetLink, link), 5, target_pb2.OpenSession(prompt_ids=[1]))
    link.session = session
    await session.open()
    return session, link


BLOCK = target_pb2.Block(start=1)


def kinds(link: Link) -> list[tuple[str | None, int, int]]:
    return [(frame.WhichOneof("frame"), frame.epoch, frame.round) for frame in link.sent]


async def test_rounds_are_numbered_over_the_session() -> None:
    session, link = await opened([4], [5, 6])
    assert [t.id for t in (await session.verify(BLOCK)).tokens] == [4]
    assert [t.id for t in (await session.verify(BLOCK)).tokens] == [5, 6]
    assert kinds(link) == [("open", 1, 0), ("block", 1, 1), ("block", 1, 2)]
    await session.close()
    assert link.forgotten == 1


@pytest.mark.parametrize("trouble", ["lost", PrefixLostError("gone")])
async def test_a_lost_round_is_sent_again_after_its_prefix(trouble: Any) -> None:
    session, link = await opened([4], trouble, "opened", [5])
    await session.verify(BLOCK)
    assert [t.id for t in (await session.verify(BLOCK)).tokens] == [5]
    assert kinds(link) == [("open", 1, 0), ("block", 1, 1), ("block", 1, 2), ("open", 2, 0), ("block", 2, 2)]
    assert list(link.sent[3].open.output_ids) == [4], "what was committed, once"
    assert link.sent[3].open.request_key == b"k" * 32


async def test_what_was_lost_between_rounds_is_noticed_by_the_next() -> None:
    session, link = await opened("opened", [4])
    session.connection_lost()
    assert [t.id for t in (await session.verify(BLOCK)).tokens] == [4]
    assert kinds(link) == [("open", 1, 0), ("open", 2, 0), ("block", 2, 1)]


async def test_weights_that_changed_with_the_slot_are_told_once() -> None:
    session, link = await opened("lost", b"a", [4], "lost", b"b", [5], [6])
    told = [(await session.verify(BLOCK)).weights_sha256 for _ in range(3)]
    assert told == [b"a", b"b", b""]
    assert link.learned == [b"", b"a", b"b"]


async def test_a_full_queue_is_waited_out_by_a_running_session() -> None:
    full = OverloadedError("full", retry_delay=0.01)
    session, link = await opened("lost", full, "lost", full, "opened", [4])
    assert (await session.verify(BLOCK)).tokens
    assert link.sent[-1].epoch == 5


async def test_a_round_that_always_breaks_the_stream_is_given_up() -> None:
    session, link = await opened(*["lost", "opened"] * (MAX_LOSSES + 1))
    with pytest.raises(PeerUnavailableError, match="lost 6 times"):
        await session.verify(BLOCK)
    assert sum(kind == "block" for kind, _, _ in kinds(link)) == MAX_LOSSES + 1


async def test_losses_of_rounds_that_went_on_don_t_add_up() -> None:
    session, _ = await opened(*["lost", "opened", [4]] * (MAX_LOSSES + 2))
    for _ in range(MAX_LOSSES + 2):
        assert (await session.verify(BLOCK)).tokens


@pytest.mark.parametrize("error", [DrainingError("leaving"), InternalError("a bug")])
async def test_other_errors_are_the_caller_s(error: RequestError) -> None:
    session, _ = await opened(error)
    with pytest.raises(type(error), match=error.message):
        await session.verify(BLOCK)


async def test_errors_between_rounds_are_kept_for_the_next() -> None:
    session, link = await opened()
    frame = target_pb2.VerifyResponse(session=5, epoch=1, error=wire_error.to_proto(DrainingError("leaving")))
    session.receive(frame)
    with pytest.raises(DrainingError):
        await session.verify(BLOCK)
    assert len(link.sent) == 1


async def test_an_empty_verdict_breaks_the_protocol() -> None:
    session, _ = await opened([])
    with pytest.raises(ProtocolError, match="commits no token"):
        await session.verify(BLOCK)


async def test_opening_over_a_broken_stream_is_the_caller_s_to_repeat() -> None:
    link = Link("lost")
    session = LinkSession(cast(TargetLink, link), 5, target_pb2.OpenSession(prompt_ids=[1]))
    link.session = session
    with pytest.raises(PeerUnavailableError):
        await session.open()


async def test_answers_to_other_epochs_and_rounds_are_dropped() -> None:
    session, link = await opened([4])
    place = {"session": 5, "verdict": verdict_pb2.Verdict(tokens=[verdict_pb2.Token(id=9)])}
    waiting = asyncio.ensure_future(session.verify(BLOCK))
    await asyncio.sleep(0)
    session.receive(target_pb2.VerifyResponse(epoch=0, round=1, **place))
    session.receive(target_pb2.VerifyResponse(epoch=1, round=0, **place))
    session.receive(target_pb2.VerifyResponse(epoch=1, round=2, **place))
    assert [t.id for t in (await waiting).tokens] == [4]
    session.receive(target_pb2.VerifyResponse(epoch=1, round=1, **place))
    link.answers.append([5])
    assert [t.id for t in (await session.verify(BLOCK)).tokens] == [5]


def verdict(number: int, token: int, unaided: int = 0, epoch: int = 1) -> target_pb2.VerifyResponse:
    found = verdict_pb2.Verdict(tokens=[verdict_pb2.Token(id=token)], unaided=unaided)
    return target_pb2.VerifyResponse(session=5, epoch=epoch, round=number, verdict=found)


async def test_unaided_rounds_are_awaited_not_sent() -> None:
    session, link = await opened([4])
    await session.verify(target_pb2.Block(start=1, unaided=3))
    session.receive(verdict(2, 5, unaided=2))
    session.receive(verdict(2, 55, unaided=2))
    session.receive(verdict(3, 6, unaided=1))
    session.receive(verdict(5, 8))
    assert [(await session.verify(BLOCK)).tokens[0].id for _ in range(2)] == [5, 6]
    waiting = asyncio.ensure_future(session.verify(BLOCK))
    await asyncio.sleep(0)
    session.receive(verdict(4, 7))
    session.receive(verdict(5, 8))
    assert (await waiting).tokens[0].id == 7
    link.answers.append([8])
    assert (await session.verify(BLOCK)).tokens[0].id == 8
    assert kinds(link) == [("open", 1, 0), ("block", 1, 1), ("block", 1, 5)]


async def test_a_halt_ends_them_with_the_verdict_that_says_so() -> None:
    session, link = await opened([4])
    session.halt()
    await session.verify(target_pb2.Block(start=1, unaided=8))
    session.halt()
    session.halt()
    session.receive(verdict(2, 5, unaided=7))
    session.receive(verdict(3, 6, unaided=0))
    session.receive(verdict(4, 7, unaided=6))
    assert [(await session.verify(BLOCK)).tokens[0].id for _ in range(2)] == [5, 6]
    session.halt()
    link.answers.append([8])
    assert (await session.verify(BLOCK)).tokens[0].id == 8
    frames = [(frame.WhichOneof("frame"), frame.round) for frame in link.sent]
    assert frames == [("open", 0), ("block", 1), ("halt", 1), ("block", 4)]


@pytest.mark.parametrize("trouble", ["lost", PrefixLostError("gone")])
async def test_a_loss_among_unaided_rounds_costs_only_those_that_had_not_come(trouble: Any) -> None:
    session, link = await opened([4], "opened", [6])
    await session.verify(target_pb2.Block(start=1, unaided=5))
    session.receive(verdict(2, 5, unaided=4))
    if trouble == "lost":
        session.connection_lost()
    else:
        session.receive(target_pb2.VerifyResponse(session=5, epoch=1, error=wire_error.to_proto(trouble)))
    session.receive(verdict(3, 55, unaided=3))
    assert (await session.verify(target_pb2.Block(start=2, unaided=4))).tokens[0].id == 5
    assert (await session.verify(target_pb2.Block(start=3, unaided=3))).tokens[0].id == 6
    session.receive(verdict(4, 77, unaided=2))
    session.receive(verdict(4, 7, unaided=2, epoch=2))
    assert (await session.verify(target_pb2.Block(start=4, unaided=2))).tokens[0].id == 7
    assert kinds(link) == [("open", 1, 0), ("block", 1, 1), ("open", 2, 0), ("block", 2, 3)]
    assert list(link.sent[2].open.output_ids) == [4, 5]
    assert link.sent[-1].block.unaided == 3
