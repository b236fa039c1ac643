"""An engine that also tells what the model's head got: for distillation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from draftproof.engine.engine import TransformersEngine
from draftproof.engine.forwards import TransformersForward
from draftproof.engine.interface import Row
from draftproof.errors import UnsupportedError

_TOLERANCE: Final = 0.02


class StatesEngine:
    """Wraps an engine; logits must be the head's rows times the states, nothing after it.

    Attributes:
        model: the engine's, whose layers students are cut from.
    """

    def __init__(self, engine: TransformersEngine) -> None:
        if not isinstance(engine.run, TransformersForward):
            raise ValueError("states are seen in transformers' own forward only; load the engine with packed=False")
        self._engine = engine
        self.model = engine.run.model
        self._seen: list[Tensor] = []
        head: Any = self.model.get_output_embeddings()
        head.register_forward_pre_hook(lambda module, fed: self._seen.append(fed[0]))
        self._head: Tensor = head.weight.detach()[: engine.vocab_size]
        self._checked = False

    @property
    def slots(self) -> int:
        """Sequences at once."""
        return self._engine.slots

    @property
    def vocab_size(self) -> int:
        """V."""
        return self._engine.vocab_size

    @property
    def max_context(self) -> int:
        """Most tokens a slot holds."""
        return self._engine.max_context

    def head_rows(self) -> Tensor:
        """Rows of the head, bfloat16 [V, H]."""
        return self._head.bfloat16()

    def truncate(self, slot: int, length: int) -> None:
        """See `Engine.truncate`."""
        self._engine.truncate(slot, length)

    def forward(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
        """See `Engine.forward`; beside the logits [N, V] the states [N, H], bfloat16.

        Raises:
            UnsupportedError: the model does something to its logits after the head.
        """
        self._seen.clear()
        logits = self._engine.forward(rows)
        states = torch.cat([seen.flatten(0, -2) for seen in self._seen]).detach()
        if not self._checked and len(states):
            ours = states[:1].float() @ self._head.float().T
            scale = logits[:1].float().abs().max().clamp(min=1e-6)
            if len(states) != len(logits) or float((ours - logits[:1].float()).abs().max() / scale) > _TOLERANCE:
                raise UnsupportedError(f"{self._engine.name} changes its logits after the head; it can't be distilled")
            self._checked = True
        return logits, states.bfloat16()
