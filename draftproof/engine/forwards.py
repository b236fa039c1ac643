"""How an engine runs its model over packed tokens: transformers' own code, for every architecture and device."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from draftproof.engine import attention
from draftproof.engine.layout import BatchLayout


class Forward(Protocol):
    """A model over packed tokens of many sequences."""

    @property
    def name(self) -> str:
        """For logs."""
        ...

    @property
    def input_ids_limit(self) -> int:
        """Ids that have an embedding are below it."""
        ...

    def __call__(
        self, layout: BatchLayout, token_ids: Sequence[int], positions: Sequence[int], keep: Sequence[int]
    ) -> Tensor:
        """Runs the tokens, writing their keys and values into the slots.

        Args:
            layout: who is who; its groups cover all tokens in order.
            token_ids, positions: one per token.
            keep: indices of the tokens that want logits.

        Returns:
            Logits [len(keep), padded vocabulary], the model's dtype, or float32 where the CPU lacks it.
        """
        ...


class TransformersForward:
    """The model's own forward, its attention replaced by `draftproof.engine.attention`."""

    name = "transformers"

    def __init__(self, model: PreTrainedModel) -> None:
        attention.register()
        model.set_attn_implementation(attention.NAME)
        self.model = model
        embeddings: Tensor = model.get_input_embeddings().weight  # type: ignore[assignment]
        self.input_ids_limit = embeddings.shape[0]
        self._device = embeddings.device
        self._selects_logits = "logits_to_keep" in inspect.signature(model.forward).parameters

    def __call__(
        self, layout: BatchLayout, token_ids: Sequence[int], positions: Sequence[int], keep: Sequence[int]
    ) -> Tensor:
        kept = torch.tensor(keep, dtype=torch.long, device=self._device)
        out = self.model(
            input_ids=torch.tensor([token_ids], device=self._device),
            position_ids=torch.tensor([positions], device=self._device),
            use_cache=False,
            layout=layout,
            **({"logits_to_keep": kept} if self._selects_logits else {}),
        )
        logits: Tensor = out.logits[0]
        return logits if self._selects_logits else logits[kept.to(logits.device)]
