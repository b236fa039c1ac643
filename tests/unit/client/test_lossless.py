"""What bent the law in one attempt is not forgotten by the next."""

from __future__ import annotations

import pytest

from draftproof.client.generation import Generation
from draftproof.client.retry import Edges, RetryPolicy
from draftproof.errors import UnavailableError
from draftproof.v1 import generation_pb2 as pb
from draftproof.v1 import verdict_pb2

STARTED = pb.GenerateResponse(started=pb.Started(prompt_ids=[7], request_key=bytes(32), gamma=4))


def chunk(token: int, not_lossless: bool) -> pb.GenerateResponse:
    tokens = [verdict_pb2.Token(id=token, text="x", source=verdict_pb2.TOKEN_SOURCE_TARGET)]
    return pb.GenerateResponse(chunk=pb.Chunk(tokens=tokens, not_lossless=not_lossless))


def finished(lossless: bool) -> pb.GenerateResponse:
    return pb.GenerateResponse(
        finished=pb.Finished(
            finish_reason=verdict_pb2.FINISH_REASON_STOP, stats=verdict_pb2.SpeculationStats(), lossless=lossless
        )
    )


@pytest.mark.parametrize(
    ("before", "after", "end", "lossless"),
    [(False, False, True, True), (True, False, True, False), (False, True, True, False), (False, False, False, False)],
)
def test_lossless_is_carried_over_attempts(before: bool, after: bool, end: bool, lossless: bool) -> None:
    generation = Generation(pb.GenerateRequest(text="hi"), 60.0, RetryPolicy(), Edges(lambda: 1.0, lambda: 0.5))
    generation.feed(STARTED)
    first = generation.feed(chunk(1, before))
    assert first is not None
    assert first.lossless is not before
    assert generation.pause_after(UnavailableError("gone")) is not None
    generation.feed(STARTED)
    generation.feed(chunk(2, after))
    generation.feed(finished(end))
    assert generation.result().lossless is lossless
