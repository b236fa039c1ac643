"""From prompts to requests, and from outcomes to rollouts."""

from __future__ import annotations

from typing import Any

import pytest

from draftproof.client.rollouts import Batch, batch
from draftproof.errors import InvalidArgumentError, NumericsError
from draftproof.sampling.params import SamplingParams


def made(
    prompts: Any, n: Any = 2, concurrency: Any = 4, sampling: SamplingParams | None = None, **fields: Any
) -> Batch:
    return batch(prompts, n=n, sampling=sampling, sampling_fields=fields, priority=0, concurrency=concurrency)


def test_every_form_of_prompt_n_times_side_by_side() -> None:
    work = made(["hi", [7, 8], [{"role": "user", "content": "hello"}]], n=2, temperature=0.5, seed=3)
    assert [r.WhichOneof("prompt") for r in work.requests] == ["text"] * 2 + ["token_ids"] * 2 + ["chat"] * 2
    assert [r.sample_index for r in work.requests] == [0, 1] * 3
    assert {(r.sampling.temperature, r.sampling.seed) for r in work.requests} == {(0.5, 3)}
    assert work.requests[0].text == "hi"
    assert list(work.requests[3].token_ids.ids) == [7, 8]
    assert work.requests[5].chat.messages[0].content == "hello"


def test_a_prompt_given_again_goes_on_counting() -> None:
    work = made(["a", "b", "a", [1], "a", (1,)], n=2)
    assert [r.sample_index for r in work.requests] == [0, 1, 0, 1, 2, 3, 0, 1, 4, 5, 2, 3]


@pytest.mark.parametrize(("fields", "expected"), [({}, 0), ({"logprobs": 3}, 3)])
def test_log_probabilities_are_always_asked_for(fields: dict[str, Any], expected: int) -> None:
    for work in (made(["a"], **fields), made(["a"], sampling=SamplingParams(**fields))):
        assert all(r.sampling.HasField("logprobs") and r.sampling.logprobs == expected for r in work.requests)


@pytest.mark.parametrize(
    ("prompts", "field"),
    [
        (["a", ""], None),
        (["a", []], "prompts[1]"),
        (["a", 3], "prompts[1]"),
        (["a", None], "prompts[1]"),
        (["a", [1, -2]], "prompts[1][1]"),
        (["a", "\ud800"], "prompts[1]"),
        ([[{"role": "me", "content": "x"}]], "prompts[0][0].role"),
        ([[{"role": "user", "content": "x"}, 3]], "prompts[0][1]"),
        ("hello", "prompts"),
        ({"a": 1}, "prompts"),
    ],
)
def test_wrong_prompts_are_named(prompts: Any, field: str | None) -> None:
    if field is None:
        assert made(prompts).requests[-1].text == ""
        return
    with pytest.raises(InvalidArgumentError) as caught:
        made(prompts)
    assert caught.value.metadata["field"] == field
    assert caught.value.message.startswith(f"{field} must be ")


@pytest.mark.parametrize(
    ("options", "field"),
    [({"n": 0}, "n"), ({"n": True}, "n"), ({"concurrency": 0}, "concurrency"), ({"temperature": -1.0}, "temperature")],
)
def test_wrong_numbers_are_named(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        made(["a"], **options)
    assert caught.value.metadata["field"] == field


def test_samples_come_back_under_their_prompts() -> None:
    work = made(["a", "b"], n=2)
    errors = [NumericsError(f"{i}") for i in range(4)]
    first, second = work.together(errors)
    assert (first.prompt, second.prompt) == ("a", "b")
    assert first.errors == tuple(errors[:2])
    assert second.errors == tuple(errors[2:])
    assert second.completions == ()
    with pytest.raises(NumericsError, match="3"):
        second.samples[1].result()
    assert made([]).together([]) == []
