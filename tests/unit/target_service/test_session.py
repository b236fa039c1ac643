"""Committing a round: the cut, the counts, the text and the cache, without any server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from draftproof.engine.text import TextStream
from draftproof.sampling.draft_q import OneHot
from draftproof.sampling.params import Rule, SamplingParams
from draftproof.testing.table import ByteTokenizer
from draftproof.v1 import verdict_pb2 as pb
from draftproof.verification.intake import Intake, RefusalKind, RefusalNote
from draftproof.verification.round import RoundResult
from target_service.session import PendingRound, Session, stop_ids

TOKENIZER = ByteTokenizer(27, first_byte=ord("a"))
EOS = 26
GAMMA = 4


def make(output: Sequence[int] = (), max_new: int = 100, **params: object) -> Session:
    params = {"rule": "token", **params}
    settings = SamplingParams(**params)  # type: ignore[arg-type]
    return Session(
        key=(None, 1),
        epoch=1,
        request_id="",
        prompt_ids=[1, 2, 3],
        output_ids=list(output),
        params=settings,
        request_key=bytes(32),
        weights_version=0,
        trace_top=None,
        max_new=max_new,
        text=TextStream(TOKENIZER, settings.stop),
        stop_ids=stop_ids(settings, TOKENIZER),
        deliver=lambda frame: None,
    )


def commit(
    session: Session,
    proposals: Sequence[int],
    accepted: int,
    next_id: int,
    refusal: RefusalNote | None = None,
    lossless: bool = True,
) -> pb.Verdict:
    intake = Intake(list(proposals), [OneHot(t) for t in proposals], refusal, lossless)
    session.pending = PendingRound(1, intake, 0)
    reached = len(proposals) if session.params.rule is Rule.BLOCK else min(accepted + 1, len(proposals))
    result = RoundResult(
        accepted=accepted,
        next_id=next_id,
        examined=len(proposals),
        overlaps=[0.5 + i / 16 for i in range(reached)],
        finite=True,
    )
    return session.commit(result)


def ids(verdict: pb.Verdict) -> list[int]:
    return [token.id for token in verdict.tokens]


@pytest.mark.parametrize("accepted", range(GAMMA + 1))
def test_a_whole_round(accepted: int) -> None:
    session = make(output=[9])
    verdict = commit(session, [10, 11, 12, 13], accepted, 20)
    assert ids(verdict) == [*[10, 11, 12, 13][:accepted], 20]
    assert session.tokens == [1, 2, 3, 9, *ids(verdict)]
    assert session.output_ids == [9, *ids(verdict)]
    assert session.max_new == 100 - len(verdict.tokens)
    assert session.cached == 4 + accepted
    assert session.prefill_left() == 0, "the last token is fed by the next round"
    assert (verdict.accepted, verdict.examined) == (accepted, GAMMA)
    assert verdict.expected_accepted == sum(0.5 + i / 16 for i in range(min(accepted + 1, GAMMA)))
    last = pb.TOKEN_SOURCE_BONUS if accepted == GAMMA else pb.TOKEN_SOURCE_RESAMPLED
    assert [token.source for token in verdict.tokens] == [pb.TOKEN_SOURCE_ACCEPTED] * accepted + [last]
    assert verdict.finish_reason == pb.FINISH_REASON_UNSPECIFIED
    assert "".join(token.text for token in verdict.tokens) == TOKENIZER.decode(ids(verdict))


def test_a_round_without_proposals() -> None:
    verdict = commit(make(), [], 0, 5)
    assert verdict.tokens[0].source == pb.TOKEN_SOURCE_TARGET
    assert (verdict.accepted, verdict.examined, verdict.expected_accepted) == (0, 0, 0.0)


@pytest.mark.parametrize("kind", ["eos", "stop id", "stop string", "length"])
@pytest.mark.parametrize("accepted", range(GAMMA + 1))
@pytest.mark.parametrize("cut", range(GAMMA + 1))
def test_nothing_after_the_cut(kind: str, accepted: int, cut: int) -> None:
    tokens = [10, 11, 12, 13, 20]
    params: dict[str, object] = {}
    max_new = 100
    if kind == "eos":
        tokens[cut] = EOS
    elif kind == "stop id":
        params = {"stop_token_ids": (tokens[cut],)}
    elif kind == "stop string":
        params = {"stop": (TOKENIZER.decode([tokens[cut]]),)}
    else:
        max_new = cut + 1
    session = make(max_new=max_new, **params)
    candidates = tokens[: accepted + 1]
    verdict = commit(session, tokens[:GAMMA], accepted, candidates[-1])
    if cut >= len(candidates):
        assert ids(verdict) == candidates
        assert not verdict.finish_reason
        return
    assert ids(verdict) == session.output_ids == candidates[: cut + 1]
    assert session.tokens == [1, 2, 3, *candidates[: cut + 1]]
    assert session.cached <= len(session.tokens)
    expected = pb.FINISH_REASON_LENGTH if kind == "length" else pb.FINISH_REASON_STOP
    assert verdict.finish_reason == expected
    whole = cut + 1 == len(candidates)
    assert verdict.examined == (GAMMA if whole else cut + 1)
    assert verdict.accepted == min(accepted, cut + 1)
    reached = min(accepted + 1, GAMMA, cut + 1)
    assert verdict.expected_accepted == sum(0.5 + i / 16 for i in range(reached))
    kept = candidates[: cut + (kind != "stop string")]
    assert "".join(token.text for token in verdict.tokens) == TOKENIZER.decode(kept)


def test_a_stop_wins_over_the_length() -> None:
    for params in ({"stop_token_ids": (11,)}, {"stop": (TOKENIZER.decode([10, 11]),)}):
        verdict = commit(make(max_new=2, **params), [10, 11, 12], 3, 20)
        assert verdict.finish_reason == pb.FINISH_REASON_STOP
        assert ids(verdict) == [10, 11]
    verdict = commit(make(max_new=2, stop_token_ids=(12,)), [10, 11, 12], 3, 20)
    assert verdict.finish_reason == pb.FINISH_REASON_LENGTH


class FallbackTokenizer(ByteTokenizer):
    """Names its bytes as SentencePiece's fallback tokens, whose text is held back until their run ends."""

    def token(self, token_id: int) -> str:
        return f"<0x{ord('a') + token_id:02X}>" if token_id < EOS else super().token(token_id)


def test_a_stop_in_text_held_back_wins_over_the_length() -> None:
    session = make(max_new=3, stop=("b",))
    session.text = TextStream(FallbackTokenizer(27, first_byte=ord("a")), ("b",))
    verdict = commit(session, [0, 1], 2, 2)
    assert "".join(token.text for token in verdict.tokens) == "a"
    assert verdict.finish_reason == pb.FINISH_REASON_STOP


def test_a_stop_string_that_began_before_the_prefix_was_sent_again() -> None:
    whole = make(stop=("bcd",))
    commit(whole, [], 0, 1)
    commit(whole, [], 0, 2)
    resumed = make(output=[1, 2], stop=("bcd",))
    for session in (whole, resumed):
        verdict = commit(session, [], 0, 3)
        assert verdict.finish_reason == pb.FINISH_REASON_STOP
        assert verdict.tokens[0].text == ""


def test_ignored_end_of_sequence_is_a_token_like_any_other() -> None:
    verdict = commit(make(ignore_eos=True), [EOS, 5], 2, 6)
    assert ids(verdict) == [EOS, 5, 6]
    assert not verdict.finish_reason
    own = commit(make(ignore_eos=True, stop_token_ids=(EOS,)), [EOS, 5], 2, 6)
    assert ids(own) == [EOS]


def test_a_refusal_is_told_and_dishonesty_stays() -> None:
    session = make()
    note = RefusalNote(1, RefusalKind.ZERO_MASS, "q has no mass")
    verdict = commit(session, [10], 1, 11, note, lossless=False)
    assert (verdict.refusal.offset, verdict.refusal.kind) == (1, pb.REFUSAL_KIND_ZERO_MASS)
    assert verdict.refusal.message == "q has no mass"
    assert not verdict.lossless
    later = commit(session, [10], 1, 11)
    assert not later.lossless
    assert not later.HasField("refusal")


def _said(tokens: Sequence[int], stops: dict[str, tuple[Any, ...]]) -> str:
    text = "".join(chr(ord("a") + token) for token in tokens)
    for token in stops.get("stop_token_ids", ()):
        text = text[: text.index(chr(ord("a") + token)) + 1] if token in tokens else text
    for stop in stops.get("stop", ()):
        text = text.partition(stop)[0]
    return text


@pytest.mark.parametrize(
    ("accepted", "stops", "counted"),
    [
        (4, {}, 4),
        (1, {}, 4),
        (4, {"stop_token_ids": (11,)}, 2),
        (0, {"stop_token_ids": (11,)}, 2),
        (0, {"stop_token_ids": (13,)}, 4),
        (0, {"stop": ("klm",)}, 3),
        (3, {"stop": ("klm",)}, 3),
        (0, {"stop": ("q",)}, 4),
    ],
)
def test_a_block_judged_as_a_whole_expects_up_to_the_first_stop_in_it(
    accepted: int, stops: dict[str, tuple[Any, ...]], counted: int
) -> None:
    """The verdict reached none of them one by one; what could never be emitted isn't expected to be."""
    session = make(rule="block", **stops)
    verdict = commit(session, [10, 11, 12, 13], accepted, 20)
    assert verdict.expected_accepted == sum(0.5 + i / 16 for i in range(counted))
    assert verdict.accepted == min(accepted, counted)
    # looking ahead left the session's own text alone
    assert "".join(token.text for token in verdict.tokens) == _said([*[10, 11, 12, 13][:accepted], 20], stops)


def test_losses_go_with_their_tokens_and_the_response_says_so() -> None:
    session = make(rule="lenient", lenience=0.5)
    session.lossless = False
    session.pending = PendingRound(1, Intake([10, 11], [OneHot(10), OneHot(11)], None, True), 0)
    result = RoundResult(accepted=1, next_id=20, examined=2, overlaps=[1.0, 1.0], finite=True, losses=[0.25, 0.5])
    verdict = session.commit(result)
    assert [token.loss for token in verdict.tokens] == [0.25, 0.5]
    assert not verdict.lossless
