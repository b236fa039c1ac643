"""A distilled draft on disk: small, because it shares its embedding with the target it was cut from.

A draft folder holds

- config.json: the student's configuration, with `draftproof_draft`: the format, the base (the embedded model's name or
  a hub id; null if everything is in the folder) and the SHA-256 of the base's embedding;
- draft.safetensors: the trained tensors. A matrix is int8 with one scale a row, `<name>.scale`. `head.token_ids`, int32
  [M] ascending, are the tokens that the draft can propose; `head.adapter` [H, H] makes their rows out of the
  embedding's, or `head.weight` [M, H] are the rows;
- without a base also the embedding, in draft.safetensors, and the tokenizer's files.
"""

from __future__ import annotations

import copy
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.utils.hub import cached_file

from draftproof.engine.student import LAYER
from draftproof.errors import ModelLoadError

FORMAT: Final = 1
WEIGHTS: Final = "draft.safetensors"
_KEY: Final = "draftproof_draft"
_EMBEDDING: Final = "embedding"
_SCALE: Final = ".scale"


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What a folder keeps.

    Attributes:
        model: the student; its layers and norm are kept.
        head_token_ids: int32 [M], ascending.
        head_adapter: [H, H]; the head's rows are those of the embedding times its transpose. None with head_weight.
        head_weight: [M, H], or None.
        base: name of the model whose embedding it shares; None keeps the embedding.
        embedding: the base's embedding as its file has it, [V, H].
    """

    model: PreTrainedModel
    head_token_ids: Tensor
    head_adapter: Tensor | None
    head_weight: Tensor | None
    base: str | None
    embedding: Tensor


class ReducedHead(nn.Module):
    """A head that knows M of V tokens; the logits of all others are −inf."""

    def __init__(self, weight: Tensor, token_ids: Tensor, vocab_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.register_buffer("token_ids", token_ids.long(), persistent=False)
        self.out_features = vocab_size

    def forward(self, states: Tensor) -> Tensor:
        """Logits [..., V] of states [..., H]."""
        known = nn.functional.linear(states, self.weight)
        logits = known.new_full((*known.shape[:-1], self.out_features), float("-inf"))
        token_ids: Tensor = self.token_ids  # type: ignore[assignment]
        return logits.index_copy_(-1, token_ids, known)


def is_draft(folder: str | Path) -> bool:
    """Whether it is the folder of a distilled draft."""
    return (Path(folder) / WEIGHTS).is_file()


def describes(settings: PreTrainedConfig) -> bool:
    """Whether a model with this configuration came out of such a folder."""
    return hasattr(settings, _KEY)


def base_of(folder: str | Path) -> str | None:
    """Name of the model whose embedding and tokenizer the draft shares.

    Raises:
        ModelLoadError: a format that this release doesn't know.
    """
    return _settings(Path(folder))["base"]  # type: ignore[no-any-return]


def save(folder: Path, draft: Draft) -> None:
    """Writes the folder; tokenizer files are the caller's where there is no base."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Tensor] = {"head.token_ids": draft.head_token_ids.to(torch.int32).contiguous()}
    shared = {id(draft.model.get_input_embeddings().weight), id(draft.model.get_output_embeddings().weight)}
    for name, parameter in draft.model.named_parameters():
        if id(parameter) not in shared:
            _pack(tensors, name, parameter.detach())
    if draft.head_adapter is not None:
        tensors["head.adapter"] = draft.head_adapter.detach().bfloat16().contiguous()
    if draft.head_weight is not None:
        _pack(tensors, "head.weight", draft.head_weight.detach())
    if draft.base is None:
        tensors[_EMBEDDING] = draft.embedding.contiguous()
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    config = copy.deepcopy(draft.model.config)
    config.dtype = torch.bfloat16
    config.tie_word_embeddings = False
    config.name_or_path = ""
    setattr(
        config, _KEY, {"format": FORMAT, "base": draft.base, "base_embedding_sha256": embedding_sha256(draft.embedding)}
    )
    config.save_pretrained(folder)


def load(folder: Path, base_location: str | None, dtype: torch.dtype | None) -> PreTrainedModel:
    """The draft as a model whose head gives −inf to every token that it doesn't know.

    Args:
        folder: as `save` wrote it.
        base_location: folder or hub id of the base, if there is one.
        dtype: of the weights; None takes the configuration's.

    Raises:
        ModelLoadError: a format that this release doesn't know, or another base than the draft was made for.
    """
    settings = _settings(folder)
    tensors = load_file(folder / WEIGHTS)
    embedding = tensors.pop(_EMBEDDING) if base_location is None else base_embedding(base_location)
    if embedding_sha256(embedding) != settings["base_embedding_sha256"]:
        raise ModelLoadError(
            f"the draft in {folder} was made for another {settings['base'] or 'embedding'} than the one here; distil it"
            " again for this target"
        )
    token_ids = tensors.pop("head.token_ids")
    weights = _unpack(tensors)
    head = weights.pop("head.weight", None)
    if head is None:
        head = embedding[token_ids.long()].float() @ weights.pop("head.adapter").T
    config = AutoConfig.from_pretrained(folder)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype or config.dtype)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    with torch.no_grad():
        model.get_input_embeddings().weight.copy_(embedding)  # type: ignore[operator]
    if unexpected or any(LAYER.search(name) for name in missing):
        raise ModelLoadError(f"the draft in {folder} is damaged: its weights don't fit its configuration")
    model.set_output_embeddings(ReducedHead(head.to(model.dtype), token_ids, config.get_text_config().vocab_size))
    return model


def embedding_sha256(embedding: Tensor) -> str:
    """SHA-256 of an embedding's dtype, shape and bits."""
    found = hashlib.sha256(f"{embedding.dtype}\0{tuple(embedding.shape)}\0".encode())
    found.update(embedding.contiguous().view(torch.uint8).numpy().data)
    return found.hexdigest()


def base_embedding(location: str) -> Tensor:
    """The embedding of a model in a folder or on the hub, as its file has it; no other weights are read.

    Raises:
        ModelLoadError: there are no safetensors files, or none holds an embedding.
    """
    index = cached_file(location, "model.safetensors.index.json", _raise_exceptions_for_missing_entries=False)
    shards: dict[str, str] = json.loads(Path(index).read_text())["weight_map"] if index else {}
    wanted = [name for name in shards if _is_embedding(name)]
    file = cached_file(
        location, shards[wanted[0]] if wanted else "model.safetensors", _raise_exceptions_for_missing_entries=False
    )
    if file is not None:
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118
                if _is_embedding(name):
                    found: Tensor = tensors.get_tensor(name)
                    return found
    raise ModelLoadError(f"{location} has no embedding in a safetensors file that a draft could share")


def _is_embedding(name: str) -> bool:
    return name.endswith(("embed_tokens.weight", "wte.weight", "embed_in.weight"))


def _settings(folder: Path) -> dict[str, Any]:
    config = json.loads((folder / "config.json").read_text())
    settings: dict[str, Any] = config.get(_KEY) or {}
    if settings.get("format") != FORMAT:
        raise ModelLoadError(
            f"the draft in {folder} has format {settings.get('format')}, this release reads {FORMAT}; distil it again"
        )
    return settings


def _pack(tensors: dict[str, Tensor], name: str, weights: Tensor) -> None:
    """Matrices as int8 with a scale a row, everything else as it is."""
    weights = weights.float()
    if weights.ndim != 2:
        tensors[name] = weights.contiguous()
        return
    scale = (weights.abs().amax(-1) / 127).clamp(min=1e-12)
    tensors[name] = (weights / scale[:, None]).round().to(torch.int8)
    tensors[name + _SCALE] = scale


def _unpack(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: tensor.float() * tensors[name + _SCALE][:, None] if name + _SCALE in tensors else tensor.float()
        for name, tensor in tensors.items()
        if not name.endswith(_SCALE)
    }
