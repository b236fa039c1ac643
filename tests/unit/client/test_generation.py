"""The state of a generation over all its attempts: folding, resuming, giving up."""

from __future__ import annotations

import pytest

from draftproof.client.generation import MAX_BARREN_RESUMES, Generation
from draftproof.client.retry import NO_RETRIES, Edges, RetryPolicy
from draftproof.client.types import TokenSource
from draftproof.errors import (
    ConfigError,
    DeadlineExceededError,
    DrainingError,
    InternalError,
    InvalidArgumentError,
    OverloadedError,
    ProtocolError,
    UnavailableError,
)
from draftproof.v1 import generation_pb2 as pb
from draftproof.v1 import sampling_pb2, verdict_pb2

KEY = bytes(range(32))


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def _generation(policy: RetryPolicy | None = None, seed: int | None = None, timeout: float = 60.0):
    clock = Clock()
    request = pb.GenerateRequest(text="hi", sampling=sampling_pb2.SamplingParams(seed=seed))
    return Generation(request, timeout, policy or RetryPolicy(), Edges(clock, lambda: 0.5)), clock


def _started(**changes):
    fields = {"prompt_ids": [7, 8], "request_key": KEY, "gamma": 4, "target_model": "big", "drafter": "small"}
    return pb.GenerateResponse(started=pb.Started(**{**fields, **changes}))


def _chunk(*ids, examined=4):
    sources = [verdict_pb2.TOKEN_SOURCE_ACCEPTED] * (len(ids) - 1) + [verdict_pb2.TOKEN_SOURCE_RESAMPLED]
    tokens = [verdict_pb2.Token(id=i, text=f"<{i}>", source=s) for i, s in zip(ids, sources, strict=True)]
    return pb.GenerateResponse(chunk=pb.Chunk(tokens=tokens, examined=examined, accepted=len(ids) - 1))


def _finished(**fields):
    stats = verdict_pb2.SpeculationStats(
        rounds=1,
        drafted=4,
        accepted=1,
        drafted_per_position=[1, 1, 1, 1],
        accepted_per_position=[1, 0, 0, 0],
        resampled=1,
        expected_accepted=1.5,
        time=verdict_pb2.TimeSplit(draft_ns=2_000_000, total_ns=3_000_000_000),
    )
    return pb.GenerateResponse(
        finished=pb.Finished(finish_reason=verdict_pb2.FINISH_REASON_STOP, stats=stats, lossless=True, **fields)
    )


def test_an_unbroken_generation_is_what_the_server_says():
    generation, _ = _generation()
    assert generation.feed(_started()) is None
    chunk = generation.feed(_chunk(1, 2))
    assert chunk.text == "<1><2>"
    assert [token.source for token in chunk.tokens] == [TokenSource.ACCEPTED, TokenSource.RESAMPLED]
    generation.feed(_finished(notes=["a note"]))
    generation.ended()
    done = generation.result()
    assert (done.text, done.token_ids, done.finish_reason) == ("<1><2>", (1, 2), "stop")
    assert (done.usage.prompt_tokens, done.usage.completion_tokens, done.usage.total_tokens) == (2, 2, 4)
    assert done.stats.acceptance_rate == 0.25
    assert done.stats.tokens_per_target_step == 2.0
    assert done.stats.time.draft == 0.002
    assert done.stats.time.total == 3.0
    assert done.notes == ("a note",)
    assert (done.gamma, done.target_model, done.drafter, done.request_key) == (4, "big", "small", KEY)


def test_nothing_drafted_has_no_acceptance_rate():
    generation, _ = _generation()
    generation.feed(_started())
    generation.feed(
        pb.GenerateResponse(finished=pb.Finished(finish_reason=verdict_pb2.FINISH_REASON_LENGTH, lossless=True))
    )
    stats = generation.result().stats
    assert stats.acceptance_rate is None
    assert stats.tokens_per_target_step is None


@pytest.mark.parametrize("error", [UnavailableError("gone"), DrainingError("leaving"), OverloadedError("full")])
def test_resumes_from_the_tokens_received(error):
    generation, clock = _generation(seed=3)
    generation.feed(_started())
    generation.feed(_chunk(1, 2))
    assert generation.pause_after(error) is not None
    request = generation.next_request()
    assert request.text == "hi"
    assert (request.resume.request_key, list(request.resume.output_ids)) == (KEY, [1, 2])
    generation.feed(_started(drafter="other", gamma=2))
    generation.feed(_chunk(3, 4))
    clock.now += 2
    generation.feed(_finished())
    done = generation.result()
    assert done.token_ids == (1, 2, 3, 4)
    assert done.usage.completion_tokens == 4
    assert (done.stats.rounds, done.stats.drafted, done.stats.accepted) == (2, 8, 2)
    assert done.stats.drafted_per_position == (2, 2, 2, 2)
    assert done.stats.accepted_per_position == (2, 0, 0, 0)
    assert done.stats.resampled == 2
    assert done.stats.expected_accepted is None
    assert done.stats.time.total == 2.0
    assert error.message in done.notes[0]
    assert "'small' became 'other'" in done.notes[1]
    assert "gamma 4 became 2" in done.notes[1]
    assert "this seed" in done.notes[1]


def test_a_handed_back_generation_is_resumed():
    generation, _ = _generation()
    generation.feed(_started())
    generation.feed(_chunk(1, 2))
    with pytest.raises(DrainingError) as caught:
        generation.feed(pb.GenerateResponse(handed_back=pb.Resume(request_key=KEY, output_ids=[1, 2])))
    assert generation.pause_after(caught.value) is not None
    assert list(generation.next_request().resume.output_ids) == [1, 2]


def test_before_the_first_event_a_request_is_sent_again_as_it_was():
    generation, _ = _generation()
    assert generation.pause_after(OverloadedError("full", retry_delay=2.0)) == 3.0
    assert not generation.next_request().HasField("resume")


def test_knocking_ends_before_the_deadline_overload_does_not():
    generation, clock = _generation(RetryPolicy(unavailable=5.0))
    assert generation.pause_after(UnavailableError("nobody")) is not None
    clock.now += 6
    assert generation.pause_after(UnavailableError("nobody")) is None
    for _ in range(100):
        assert generation.pause_after(OverloadedError("full", retry_delay=0.1)) is not None


def test_a_running_generation_is_resumed_until_the_deadline():
    generation, clock = _generation(RetryPolicy(unavailable=1.0), timeout=60.0)
    generation.feed(_started())
    clock.now += 50
    for _ in range(40):
        assert generation.pause_after(UnavailableError("gone")) is not None
    clock.now += 9.9
    assert generation.pause_after(UnavailableError("gone")) is None
    clock.now += 1
    with pytest.raises(DeadlineExceededError, match="60 s"):
        generation.deadline.left()


def test_a_pause_past_the_deadline_is_not_begun():
    generation, _ = _generation(timeout=2.0)
    assert generation.pause_after(OverloadedError("full", retry_delay=30.0)) is None


def test_a_request_that_only_ever_kills_servers_is_given_up():
    generation, _ = _generation()
    generation.feed(_started())
    resumes = 0
    while generation.pause_after(UnavailableError("gone")) is not None:
        generation.feed(_started())
        resumes += 1
    assert resumes == MAX_BARREN_RESUMES + 1


def test_progress_forgives_earlier_failures():
    generation, _ = _generation()
    generation.feed(_started())
    for i in range(3 * MAX_BARREN_RESUMES):
        assert generation.pause_after(UnavailableError("gone")) is not None
        generation.feed(_started())
        generation.feed(_chunk(i))


@pytest.mark.parametrize("error", [InvalidArgumentError("x"), InternalError("x"), ProtocolError("x"), ValueError("x")])
def test_what_is_never_retried(error):
    generation, _ = _generation()
    assert generation.pause_after(error) is None
    generation.feed(_started())
    assert generation.pause_after(error) is None


def test_retries_can_be_switched_off():
    generation, _ = _generation(NO_RETRIES)
    assert generation.pause_after(OverloadedError("full", retry_delay=0.1)) is None
    assert generation.pause_after(UnavailableError("gone")) is None
    generation.feed(_started())
    assert generation.pause_after(UnavailableError("gone")) is None


def test_a_finished_generation_is_never_sent_again():
    generation, _ = _generation()
    generation.feed(_started())
    generation.feed(_finished())
    assert generation.pause_after(UnavailableError("gone")) is None


def test_a_resumed_generation_keeps_the_output_it_was_given():
    request = pb.GenerateRequest(text="hi")
    request.resume.output_ids.extend([5, 6])
    generation = Generation(request, 10.0, RetryPolicy())
    assert list(generation.next_request().resume.output_ids) == [5, 6]
    generation.feed(_started())
    assert list(generation.next_request().resume.output_ids) == [5, 6]
    generation.feed(_chunk(7))
    assert list(generation.next_request().resume.output_ids) == [5, 6, 7]


def test_a_stream_that_just_ends_is_resumed_like_a_lost_one():
    generation, _ = _generation()
    generation.feed(_started())
    with pytest.raises(UnavailableError) as caught:
        generation.ended()
    assert generation.pause_after(caught.value) is not None


def test_protocol_errors():
    generation, _ = _generation()
    with pytest.raises(ProtocolError, match="out of order"):
        generation.feed(_chunk(1))
    generation.feed(_started())
    with pytest.raises(ProtocolError, match="empty event"):
        _generation()[0].feed(pb.GenerateResponse())
    with pytest.raises(ProtocolError, match="another prompt or key"):
        generation.feed(_started(prompt_ids=[9]))
    with pytest.raises(RuntimeError, match="isn't finished"):
        generation.result()


def test_pauses_grow_up_to_the_longest_but_hints_do_not():
    policy = RetryPolicy(initial_backoff=0.1, max_backoff=1.0)
    assert [policy.pause(n, None, 1.0) for n in (1, 2, 3, 4, 5, 1000)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert policy.pause(1, None, 0.0) == 0.05
    assert {policy.pause(n, 0.5, 0.0) for n in (1, 10)} == {0.5}
    assert policy.pause(1, 0.5, 1.0) == 1.0


@pytest.mark.parametrize("field", ["unavailable", "initial_backoff", "max_backoff"])
def test_policies_are_checked(field):
    with pytest.raises(ConfigError, match=field):
        RetryPolicy(**{field: -1.0})


def test_who_waits_is_told_why_and_for_how_long():
    told = []
    policy = RetryPolicy(unavailable=10.0, notice=lambda error, seconds: told.append((error.message, seconds)))
    generation, clock = _generation(policy, timeout=60.0)
    assert generation.pause_after(UnavailableError("nobody")) is not None
    clock.now += 4.0
    assert generation.pause_after(UnavailableError("nobody")) is not None
    assert generation.pause_after(OverloadedError("full")) is not None
    generation.feed(_started())
    assert generation.pause_after(UnavailableError("gone")) is not None
    assert told == [("nobody", 10.0), ("nobody", 6.0), ("full", 56.0), ("gone", 56.0)]
    clock.now += 50.0
    assert generation.pause_after(OverloadedError("full", retry_delay=30.0)) is None
    assert generation.pause_after(InternalError("a bug")) is None
    assert len(told) == 4, "nothing is said of what is not tried again"
