"""A check at load: the engine's ragged passes against the model's own plain forward."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from draftproof.engine import attention
from draftproof.engine.engine import TransformersEngine
from draftproof.engine.interface import Row
from draftproof.errors import ModelLoadError

_LENGTH = 12


def check(model: PreTrainedModel, engine: TransformersEngine) -> None:
    """Switches the model to the ragged attention and proves it on a short sequence; allocates the KV slots.

    Raises:
        ModelLoadError: the model doesn't route its attention through transformers' interface, keeps state elsewhere,
            or gives other logits than its own forward.
        UnsupportedAttentionError: it wants an attention that the engine doesn't compute.
    """
    length = min(_LENGTH, engine.max_context)
    ids = [(7919 * position + 1) % engine.vocab_size for position in range(length)]
    expected = _plain(model, ids)[:, : engine.vocab_size]
    model.set_attn_implementation(attention.NAME)
    got = _ragged(engine, ids)
    layers = int(model.config.get_text_config().num_hidden_layers)
    if engine.layers_cached != frozenset(range(layers)):
        raise ModelLoadError(
            f"{engine.name} ({model.config.model_type}) keeps state outside transformers' attention interface"
            f" ({len(engine.layers_cached)} of {layers} layers use it); this architecture can't be served"
        )
    error = _distance(got, expected)
    # In 16 bits two correct kernels differ by 0.02 to 0.3 at single positions; a wrong mask or position by about 1.
    if not error <= (1e-3 if expected.dtype == torch.float32 else 0.2):
        raise ModelLoadError(
            f"{engine.name} ({model.config.model_type}) gives other logits in ragged passes than in its own forward"
            f" (off by {error:.2g} standard deviations); this architecture can't be served"
        )


@torch.inference_mode()
def _plain(model: PreTrainedModel, ids: list[int]) -> Tensor:
    """Logits [len(ids), width] of the model's own forward."""
    embeddings: Tensor = model.get_input_embeddings().weight  # type: ignore[assignment]
    logits: Tensor = model(input_ids=torch.tensor([ids], device=embeddings.device), use_cache=False).logits[0]
    return logits


def _ragged(engine: TransformersEngine, ids: list[int]) -> Tensor:
    """The same logits by way of chunks, wrong proposals, a rollback and a second row."""
    last = engine.slots - 1
    cut = len(ids) // 2
    wrong = [(token + 1) % engine.vocab_size for token in ids[cut:]]
    try:
        first = engine.forward([Row(last, 0, ids[:cut], cut)]) if cut else None
        if wrong:
            engine.forward([Row(last, cut, wrong, 0)])
        rows = [Row(last, cut, ids[cut:], len(ids) - cut)]
        if last > 0:
            rows.append(Row(0, 0, ids[: cut + 1], 0))
        second = engine.forward(rows)
        return second if first is None else torch.cat([first, second])
    finally:
        for slot in range(engine.slots):
            engine.truncate(slot, 0)


def _distance(got: Tensor, expected: Tensor) -> float:
    """Mean distance of the logits, in standard deviations of the expected ones at their position."""
    difference = (got.float() - expected.float()).abs().mean(dim=-1)
    return float((difference / expected.float().std(dim=-1).clamp_min(1e-6)).mean())
