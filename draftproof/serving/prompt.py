"""From what a client sent to prompt ids and sampling settings."""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.engine.interface import Tokenizer
from draftproof.errors import ContextLengthError, InvalidArgumentError
from draftproof.sampling.rng import KEY_BYTES
from draftproof.v1 import generation_pb2

ROLES = ("system", "user", "assistant")
MAX_REQUEST_ID = 128


def prompt_ids(request: generation_pb2.GenerateRequest, tokenizer: Tokenizer) -> list[int]:
    """Ids of the request's prompt, whichever form it came in.

    Raises:
        InvalidArgumentError: no prompt, an empty one, an unknown role or an id outside the vocabulary.
        UnsupportedError: a chat, but the model has no template.
    """
    form = request.WhichOneof("prompt")
    if form is None:
        raise InvalidArgumentError.of("prompt", "one of text, token_ids or chat", None)
    if form == "text":
        ids = tokenizer.encode(request.text)
        if not ids:
            raise InvalidArgumentError.of("prompt", "a text of at least one token", request.text)
    elif form == "token_ids":
        ids = list(request.token_ids.ids)
    else:
        messages = [{"role": m.role, "content": m.content} for m in request.chat.messages]
        if not messages:
            raise InvalidArgumentError.of("chat.messages", "at least one message", messages)
        for index, message in enumerate(messages):
            if message["role"] not in ROLES:
                raise InvalidArgumentError.of(
                    f"chat.messages[{index}].role", f"one of {', '.join(ROLES)}", message["role"]
                )
        ids = tokenizer.render_chat(messages)
    check_ids(ids, tokenizer.vocab_size, "prompt")
    return ids


def check_ids(ids: Sequence[int], vocab_size: int, field: str) -> None:
    """Checks a prompt: at least one id, all of them in the vocabulary.

    Raises:
        InvalidArgumentError: names the field and the limit.
    """
    if not ids:
        raise InvalidArgumentError.of(field, "at least one token", [])
    if max(ids) >= vocab_size:
        index = next(i for i, token in enumerate(ids) if token >= vocab_size)
        raise InvalidArgumentError.of(f"{field}[{index}]", f"an id in [0, {vocab_size})", ids[index])


def room(prompt_tokens: int, max_context: int, max_tokens: int | None) -> int:
    """Most tokens a request may generate: its own limit or what the context leaves.

    Raises:
        ContextLengthError: the prompt fills the context.
    """
    left = max_context - prompt_tokens
    if left < 1:
        raise ContextLengthError(
            f"the prompt has {prompt_tokens} tokens, the context holds {max_context} with at least one to generate",
            metadata={"field": "prompt", "limit": str(max_context - 1)},
        )
    return left if max_tokens is None else min(left, max_tokens)


def check_request(request: generation_pb2.GenerateRequest) -> None:
    """Checks the fields beside prompt and sampling.

    Raises:
        InvalidArgumentError: names the field and the limit.
    """
    if len(request.request_id) > MAX_REQUEST_ID:
        raise InvalidArgumentError.of("request_id", f"at most {MAX_REQUEST_ID} characters", request.request_id)
    if request.HasField("resume") and len(request.resume.request_key) != KEY_BYTES:
        raise InvalidArgumentError.of("resume.request_key", f"{KEY_BYTES} bytes", len(request.resume.request_key))
