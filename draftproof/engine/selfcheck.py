"""A check at load: an engine's ragged passes against plain ones."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from transformers import PreTrainedModel

from draftproof.engine.engine import TransformersEngine
from draftproof.engine.interface import Engine, Row
from draftproof.errors import ModelLoadError

_LENGTH = 12
FLOAT32_TOLERANCE: Final = 1e-3
TOLERANCE: Final = 0.2
"""For 16 bits or less, in standard deviations: two correct kernels differ by 0.02 to 0.3 at single positions, a wrong
mask or position by about 1."""


def check(engine: TransformersEngine, expected: Tensor, layers: int) -> None:
    """Proves an engine on a short sequence; allocates its KV slots.

    Args:
        engine: empty.
        expected: what `plain_logits` gave for the model.
        layers: how many layers the model has.

    Raises:
        ModelLoadError: the model doesn't route its attention through transformers' interface, keeps state elsewhere,
            or gives other logits than its own forward.
        UnsupportedAttentionError: it wants an attention that the engine doesn't compute.
    """
    ids = probe(engine.vocab_size, engine.max_context)
    got = ragged(engine, ids)
    if engine.layers_cached != frozenset(range(layers)):
        raise ModelLoadError(
            f"{engine.name} keeps state outside transformers' attention interface"
            f" ({len(engine.layers_cached)} of {layers} layers use it); this architecture can't be served"
        )
    error = distance(got, expected)
    if not error <= (FLOAT32_TOLERANCE if expected.dtype == torch.float32 else TOLERANCE):
        raise ModelLoadError(
            f"{engine.name} gives other logits in ragged passes than in its own forward"
            f" (off by {error:.2g} standard deviations); this architecture can't be served"
        )


@torch.inference_mode()
def plain_logits(model: PreTrainedModel, vocab_size: int, max_context: int) -> Tensor:
    """Logits [length, vocab_size] of the model's own forward, to check an engine against."""
    ids = probe(vocab_size, max_context)
    embeddings: Tensor = model.get_input_embeddings().weight  # type: ignore[assignment]
    logits: Tensor = model(input_ids=torch.tensor([ids], device=embeddings.device), use_cache=False).logits[0]
    return logits[:, :vocab_size]


def probe(vocab_size: int, max_context: int) -> list[int]:
    """A short text over the whole vocabulary."""
    return [(7919 * position + 1) % vocab_size for position in range(min(_LENGTH, max_context))]


def ragged(engine: Engine, ids: list[int]) -> Tensor:
    """Logits [len(ids), V] by way of chunks, wrong proposals, a rollback and a second row; frees all slots."""
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


def distance(got: Tensor, expected: Tensor) -> float:
    """Mean distance of the logits, in standard deviations of the expected ones at their position.

    Tokens that a reduced head doesn't know have to be unknown in both.
    """
    known = torch.isfinite(expected[0])
    if not bool((torch.isfinite(got) == known).all()):
        return float("nan")
    got, expected = got[:, known], expected[:, known]
    difference = (got.float() - expected.float()).abs().mean(dim=-1)
    return float((difference / expected.float().std(dim=-1).clamp_min(1e-6)).mean())
