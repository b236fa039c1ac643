"""Hugging Face tokenizers behind the `Tokenizer` seam."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedTokenizerBase

from draftproof.errors import InvalidArgumentError, UnsupportedError


class HfTokenizer:
    """A transformers tokenizer; `vocab_size` is its largest id + 1, added tokens included, padding excluded.

    Args:
        tokenizer: from transformers.
        eos_ids: what ends a generation.
        limit: tokens that the model lists, where transformers may have added some; None: all are the model's.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, eos_ids: frozenset[int], *, limit: int | None = None
    ) -> None:
        self._tokenizer = tokenizer
        # The Rust tokenizer itself decodes a few ids ten times faster than its wrapper.
        self._backend = getattr(tokenizer, "backend_tokenizer", None)
        self._tokens = {token_id: token for token, token_id in tokenizer.get_vocab().items()}
        size = max(self._tokens) + 1
        if limit is not None:
            size = min(size, limit)
            # llama.cpp's converter names padding so.
            while self._tokens.get(size - 1) == f"[PAD{size - 1}]":
                size -= 1
        self.vocab_size = size
        self.eos_ids = frozenset(token_id for token_id in eos_ids if token_id < self.vocab_size)
        self.has_chat_template = tokenizer.chat_template is not None

    def encode(self, text: str) -> list[int]:
        """Ids of a plain prompt, special tokens as the tokenizer's default says."""
        return list(self._tokenizer.encode(text))

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Ids of a conversation with the generation prompt at its end.

        Raises:
            UnsupportedError: the model has no chat template.
            InvalidArgumentError: the template refuses the messages.
        """
        if not self.has_chat_template:
            raise UnsupportedError("the model has no chat template; send a plain prompt")
        try:
            text = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages], tokenize=False, add_generation_prompt=True
            )
        except TemplateError as error:
            raise InvalidArgumentError(f"messages: {error}", metadata={"field": "messages"}) from error
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids, special tokens left out; incomplete UTF-8 shows as U+FFFD."""
        if self._backend is not None:
            return str(self._backend.decode(list(ids), skip_special_tokens=True))
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def token(self, token_id: int) -> str:
        """The vocabulary entry of an id; "" for an id without one."""
        return self._tokens.get(token_id, "")


def eos_ids(location: str, keywords: Mapping[str, str], tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """What ends a generation: the ids of generation_config.json, else of config.json, and the tokenizer's own."""
    revision: dict[str, Any] = {name: value for name, value in keywords.items() if name == "revision"}
    try:
        stated = GenerationConfig.from_pretrained(location, **revision).eos_token_id
    except OSError:
        stated = None
    if stated is None:
        settings, _ = PreTrainedConfig.get_config_dict(location, **keywords)
        stated = settings.get("eos_token_id")
    ids = set(stated) if isinstance(stated, list) else {stated}
    ids.add(tokenizer.eos_token_id)
    return frozenset(int(token_id) for token_id in ids if token_id is not None)
