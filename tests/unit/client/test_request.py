"""What `generate` and `stream` refuse before anything is sent, and what they send."""

from __future__ import annotations

import pytest

from draftproof.client.request import SamplingFields, build, check_timeout
from draftproof.errors import InvalidArgumentError
from draftproof.sampling.params import SamplingParams
from draftproof.v1 import generation_pb2


def _build(
    prompt: str | None = None, sampling: SamplingParams | None = None, fields: SamplingFields | None = None, **options
) -> generation_pb2.GenerateRequest:
    arguments = {
        "token_ids": None,
        "messages": None,
        "sample_index": 0,
        "request_id": None,
        "priority": 0,
        "trace": None,
        **options,
    }
    return build(prompt, sampling=sampling, sampling_fields=fields or {}, **arguments)


def test_a_plain_prompt():
    request = _build("hi", fields={"temperature": 0.5, "stop": "\n", "stop_token_ids": [3], "gamma": 0}, sample_index=2)
    assert request.text == "hi"
    assert request.sampling.temperature == 0.5
    assert list(request.sampling.stop) == ["\n"]
    assert list(request.sampling.stop_token_ids) == [3]
    assert request.sampling.gamma == 0
    assert request.sampling.HasField("gamma")
    assert request.sample_index == 2
    assert not request.HasField("trace")
    assert not request.HasField("resume")


def test_fields_and_object_say_the_same():
    params = SamplingParams(temperature=0.7, top_p=0.9, seed=4, max_tokens=3)
    fields: SamplingFields = {"temperature": 0.7, "top_p": 0.9, "seed": 4, "max_tokens": 3}
    assert _build("x", params).sampling == _build("x", fields=fields).sampling


def test_an_empty_text_is_the_servers_to_judge():
    assert _build("").WhichOneof("prompt") == "text"


def test_token_ids_and_messages():
    assert list(_build(token_ids=(1, 2)).token_ids.ids) == [1, 2]
    chat = _build(messages=[{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]).chat
    assert [(m.role, m.content) for m in chat.messages] == [("system", "be brief"), ("user", "hi")]


@pytest.mark.parametrize(("trace", "top_n"), [(1, 1), (5, 5), ("full", 0)])
def test_trace(trace, top_n):
    request = _build("x", trace=trace)
    assert request.HasField("trace")
    assert request.trace.top_n == top_n


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({}, "prompt"),
        ({"prompt": "x", "token_ids": [1]}, "prompt"),
        ({"prompt": 3}, "prompt"),
        ({"prompt": "\ud800"}, "prompt"),
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": [1, -1]}, "token_ids[1]"),
        ({"token_ids": [True]}, "token_ids[0]"),
        ({"token_ids": [1.5]}, "token_ids[0]"),
        ({"token_ids": [2**32]}, "token_ids[0]"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"prompt": "x", "request_id": "y" * 129}, "request_id"),
        ({"prompt": "x", "sample_index": -1}, "sample_index"),
        ({"prompt": "x", "priority": 101}, "priority"),
        ({"prompt": "x", "priority": -101}, "priority"),
        ({"prompt": "x", "trace": 0}, "trace"),
        ({"prompt": "x", "trace": True}, "trace"),
        ({"prompt": "x", "trace": "all"}, "trace"),
        ({"prompt": "x", "fields": {"temperature": -1}}, "temperature"),
        ({"prompt": "x", "fields": {"top_p": float("nan")}}, "top_p"),
    ],
)
def test_refusals_name_the_field(options, field):
    with pytest.raises(InvalidArgumentError) as caught:
        _build(**options)
    assert caught.value.metadata["field"] == field


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"gamma": -1}, ">= 0"),
        ({"max_tokens": 0}, ">= 1"),
        ({"gamma": 2**32}, "at most"),
        ({"logprobs": 99}, "[0, 20]"),
    ],
)
def test_limits_are_those_that_people_know(fields, limit):
    with pytest.raises(InvalidArgumentError) as caught:
        _build("x", fields=fields)
    assert caught.value.metadata["field"] in fields
    assert limit in caught.value.message
    assert "4294967295" not in caught.value.message or limit == "at most"


def test_priority_goes_along():
    assert [_build("x", priority=priority).priority for priority in (-100, 0, 100)] == [-100, 0, 100]


def test_sampling_twice_is_an_error():
    with pytest.raises(TypeError, match="not both"):
        _build("x", SamplingParams(), {"temperature": 0.5})


def test_an_unknown_keyword_is_an_error():
    with pytest.raises(TypeError, match="temprature"):
        _build("x", fields={"temprature": 0.5})


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), float("nan"), True, "5"])
def test_timeouts(timeout):
    with pytest.raises(InvalidArgumentError):
        check_timeout(timeout)
