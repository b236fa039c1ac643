"""A check at load: the engine's ragged passes against the model's own plain forward."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from draftproof.engine.engine import TransformersEngine
from draftproof.engine.interface import Row
from draftproof.errors import ModelLoadError

_LENGTH = 12


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
    ids = _probe(engine.vocab_size, len(expected))
    got = _ragged(engine, ids)
    if engine.layers_cached != frozenset(range(layers)):
        raise ModelLoadError(
            f"{engine.name} keeps state outside transformers' attention interface"
            f" ({len(engine.layers_cached)} of {layers} layers use it); this architecture can't be served"
        )
    error = _distance(got, expected)
    # In 16 bits two correct kernels differ by 0.02 to 0.3 at single positions; a wrong mask or position by about 1.
    if not error <= (1e-3 if expected.dtype == torch.float32 else 0.2):
        raise ModelLoadError(
            f"{engine.name} gives other logits in ragged passes than in its own forward"
            f" (off by {error:.2g} standard deviations); this architecture can't be served"
        )


@torch.inference_mode()
def plain_logits(model: PreTrainedModel, vocab_size: int, max_context: int) -> Tensor:
    """Logits [length, vocab_size] of the model's own forward, to check an engine against."""
    ids = _probe(vocab_size, min(_LENGTH, max_context))
    embeddings: Tensor = model.get_input_embeddings().weight  # type: ignore[assignment]
    logits: Tensor = model(input_ids=torch.tensor([ids], device=embeddings.device), use_cache=False).logits[0]
    return logits[:, :vocab_size]


def _probe(vocab_size: int, length: int) -> list[int]:
    return [(7919 * position + 1) % vocab_size for position in range(length)]


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
    """Mean distance of the logits, in standard deviations of the expected ones at their position.

    Tokens that a reduced head doesn't know have to be unknown in both.
    """
    known = torch.isfinite(expected[0])
    if not bool((torch.isfinite(got) == known).all()):
        return float("nan")
    got, expected = got[:, known], expected[:, known]
    difference = (got.float() - expected.float()).abs().mean(dim=-1)
    return float((difference / expected.float().std(dim=-1).clamp_min(1e-6)).mean())
