"""From what a client sent to prompt ids."""

from __future__ import annotations

import pytest

from draftproof.errors import ContextLengthError, InvalidArgumentError, UnsupportedError
from draftproof.serving import prompt
from draftproof.testing.table import ByteTokenizer
from draftproof.v1.generation_pb2 import Chat, ChatMessage, GenerateRequest, Resume, TokenIds

TOKENIZER = ByteTokenizer(27, first_byte=ord("a"))


def chat(*messages: tuple[str, str]) -> GenerateRequest:
    return GenerateRequest(chat=Chat(messages=[ChatMessage(role=role, content=text) for role, text in messages]))


def test_every_form() -> None:
    assert prompt.prompt_ids(GenerateRequest(text="abc"), TOKENIZER) == [0, 1, 2]
    assert prompt.prompt_ids(GenerateRequest(token_ids=TokenIds(ids=[5, 26])), TOKENIZER) == [5, 26]
    rendered = TOKENIZER.render_chat([{"role": "user", "content": "hi"}])
    assert prompt.prompt_ids(chat(("user", "hi")), TOKENIZER) == rendered


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (GenerateRequest(), "prompt"),
        (GenerateRequest(text=""), "prompt"),
        (GenerateRequest(token_ids=TokenIds()), "prompt"),
        (GenerateRequest(token_ids=TokenIds(ids=[1, 27])), "prompt[1]"),
        (chat(), "chat.messages"),
        (chat(("user", "a"), ("robot", "b")), "chat.messages[1].role"),
    ],
)
def test_wrong_prompts_name_their_field(request_: GenerateRequest, field: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        prompt.prompt_ids(request_, TOKENIZER)
    assert caught.value.metadata["field"] == field
    if request_.WhichOneof("prompt") == "text":
        assert "text" in caught.value.message


def test_a_chat_needs_a_template() -> None:
    with pytest.raises(UnsupportedError):
        prompt.prompt_ids(chat(("user", "a")), ByteTokenizer(27, first_byte=97, has_chat_template=False))


def test_room() -> None:
    assert prompt.room(10, 16, None) == 6
    assert prompt.room(10, 16, 4) == 4
    assert prompt.room(15, 16, 4) == 1
    with pytest.raises(ContextLengthError) as caught:
        prompt.room(16, 16, None)
    assert caught.value.metadata["limit"] == "15"


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (GenerateRequest(request_id="x" * 129), "request_id"),
        (GenerateRequest(resume=Resume(request_key=b"short")), "resume.request_key"),
        (GenerateRequest(resume=Resume()), "resume.request_key"),
    ],
)
def test_wrong_fields_beside_the_prompt(request_: GenerateRequest, field: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        prompt.check_request(request_)
    assert caught.value.metadata["field"] == field


def test_a_right_request_passes() -> None:
    prompt.check_request(GenerateRequest(request_id="x" * 128, resume=Resume(request_key=bytes(32))))
