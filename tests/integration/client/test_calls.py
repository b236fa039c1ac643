"""Both clients against a scripted server over a real socket: results, errors, retries, resumption, deadlines."""

from __future__ import annotations

import socket
import time

import pytest

from draftproof import RetryPolicy, errors
from draftproof.client import NO_RETRIES

FAST = RetryPolicy(initial_backoff=0.01, max_backoff=0.02, unavailable=1.0)


def test_a_generation(server, face, answers):
    server.script = [answers["whole"]((1, 2), (3,))]
    chunks, completion = face.run(server.address, temperature=0.5, seed=1, request_id="me", trace=3)
    assert [chunk.text for chunk in chunks] == ["<1><2>", "<3>"]
    assert completion.text == "<1><2><3>"
    assert completion.usage.completion_tokens == 3
    (request,) = server.requests
    assert (request.text, request.sampling.temperature, request.sampling.seed) == ("hi", 0.5, 1)
    assert (request.request_id, request.trace.top_n) == ("me", 3)


def test_every_call_has_a_deadline(server, face, answers):
    server.script = [answers["whole"]((1,))]
    face.run(server.address)
    face.run(server.address, client={"timeout": 50.0})
    face.run(server.address, timeout=3.0)
    assert [round(left, -1) for left in server.deadlines] == [600, 50, 0]


def test_a_full_server_is_asked_again_when_it_says(server, face, answers):
    full = answers["refusing"](errors.OverloadedError("full", retry_delay=0.05))
    server.script = [full] * 6 + [answers["whole"]((1,))]
    begin = time.monotonic()
    _, completion = face.run(server.address)
    assert time.monotonic() - begin >= 6 * 0.05
    assert completion.token_ids == (1,)
    assert completion.notes == ()
    assert not any(request.HasField("resume") for request in server.requests)


def test_a_full_server_and_no_time(server, face, answers):
    server.script = [answers["refusing"](errors.OverloadedError("full", retry_delay=30.0))]
    with pytest.raises(errors.OverloadedError) as caught:
        face.run(server.address, timeout=2.0)
    assert caught.value.retry_delay == 30.0
    assert len(server.requests) == 1


def test_no_retries(server, face, answers):
    server.script = [answers["refusing"](errors.OverloadedError("full", retry_delay=0.01))]
    with pytest.raises(errors.OverloadedError):
        face.run(server.address, client={"retries": NO_RETRIES})
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "error",
    [
        errors.InvalidArgumentError.of("top_p", "in (0, 1]", 2),
        errors.ContextLengthError("too long", metadata={"limit": "512"}),
        errors.UnsupportedError("no chat template"),
        errors.UnauthenticatedError("wrong token"),
        errors.FingerprintMismatchError("token 17 differs"),
        errors.NumericsError("NaN"),
        errors.InternalError("id 4711"),
    ],
)
def test_errors_arrive_typed_and_are_not_retried(server, face, answers, error):
    server.script = [answers["refusing"](error)]
    with pytest.raises(type(error)) as caught:
        face.run(server.address)
    assert type(caught.value) is type(error)
    assert caught.value.message == error.message
    assert caught.value.metadata == error.metadata
    assert len(server.requests) == 1


@pytest.mark.parametrize("error", [None, errors.UnavailableError("gone"), errors.DrainingError("leaving")])
def test_a_broken_stream_is_resumed_unseen(server, face, answers, error):
    server.script = [
        answers["broken"](1, 2, error=error),
        answers["refusing"](errors.OverloadedError("full", retry_delay=0.01)),
        answers["refusing"](errors.UnavailableError("not yet")),
        answers["whole"]((1, 2), (3, 4)),
    ]
    chunks, completion = face.run(server.address, client={"retries": FAST})
    assert [chunk.text for chunk in chunks] == ["<1><2>", "<3><4>"]
    assert completion.token_ids == (1, 2, 3, 4)
    assert len([note for note in completion.notes if note.startswith("resumed after 2 tokens")]) == 1
    assert [list(r.resume.output_ids) for r in server.requests] == [[], [1, 2], [1, 2], [1, 2]]


def test_resumption_can_be_switched_off(server, face, answers):
    server.script = [answers["broken"](1, error=errors.UnavailableError("gone"))]
    with pytest.raises(errors.UnavailableError):
        face.run(server.address, client={"retries": RetryPolicy(resume=False)})
    assert len(server.requests) == 1


def test_a_failure_in_mid_stream_that_is_not_about_the_server(server, face, answers):
    server.script = [answers["broken"](1, error=errors.NumericsError("NaN"))]
    with pytest.raises(errors.NumericsError):
        face.run(server.address)
    assert len(server.requests) == 1


def test_a_deadline_in_mid_stream(server, face, answers):
    server.script = [answers["endless"]]
    begin = time.monotonic()
    with pytest.raises(errors.DeadlineExceededError, match=r"timeout of 0.5 s"):
        face.run(server.address, timeout=0.5)
    assert time.monotonic() - begin < 5
    assert server.ended.acquire(timeout=5)


def test_nobody_there(face):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        begin = time.monotonic()
        with pytest.raises(errors.UnavailableError):
            face.run(address, client={"retries": RetryPolicy(unavailable=0.5, initial_backoff=0.05)})
    assert 0.4 < time.monotonic() - begin < 8


def test_info(server, face):
    server.info_failures = [errors.UnavailableError("starting"), errors.OverloadedError("busy", retry_delay=0.01)]
    info = face.info(server.address, retries=FAST)
    assert (info.role, info.target.model, info.draft.model, info.drafter) == ("draft", "big", "small", "model")
    assert info.targets == ("127.0.0.1:7600",)
    assert info.chat_template


def test_info_of_a_server_that_is_none_of_ours(face):
    import grpc

    other = grpc.server(__import__("concurrent.futures").futures.ThreadPoolExecutor(1))
    port = other.add_insecure_port("127.0.0.1:0")
    other.start()
    try:
        with pytest.raises(errors.UnsupportedError, match="Draftproof"):
            face.info(f"127.0.0.1:{port}")
    finally:
        other.stop(0).wait()


def test_a_token_is_sent(server, face, answers):
    server.script = [answers["whole"]((1, 2), (3,))]
    chunks, _ = face.run(server.address, client={"token": "secret"})
    assert len(chunks) == 2
    assert server.metadata[0]["authorization"] == "Bearer secret"


def test_plaintext_stays_at_home(face):
    with pytest.raises(errors.ConfigError, match="insecure"):
        face.run("192.0.2.1:7500")
