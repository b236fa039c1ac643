"""What is trained: layers cut from the target, and a head over part of the vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor, nn

from draftproof.distill.batches import Batch
from draftproof.distill.corpus import Text
from draftproof.distill.loss import Sums, Targets, head_loss
from draftproof.engine import student as engine_student
from draftproof.engine.projections import trained_dtype

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_RIDGE: Final = 1e-3
_WEIGHED: Final = 16_384
"""Positions whose whole distribution goes into the choice of the head."""


@torch.inference_mode()
def head_tokens(texts: Sequence[Text], size: int, target_rows: Tensor, favoured: Iterable[int] = ()) -> Tensor:
    """The tokens that the target is likeliest to write, ascending, int32 [M].

    Args:
        texts: of the target.
        size: M, unless the vocabulary is smaller.
        target_rows: rows of the target's whole head, [V, H].
        favoured: tokens that are in it in any case.
    """
    mass = torch.zeros(target_rows.shape[0], dtype=torch.float64)
    left = _WEIGHED
    for text in texts:
        mass.index_add_(0, torch.from_numpy(text.token_ids[text.scored_from + 1 :]).long(), _ones(text))
        states = torch.from_numpy(text.states[: max(left, 0)]).view(torch.bfloat16)
        if len(states):
            logits = (states.to(target_rows.dtype) @ target_rows.T).float()
            mass += (logits - torch.from_numpy(text.log_total[: len(states), None])).exp_().sum(0)
        left -= len(states)
    mass[list(favoured)] = torch.inf
    return mass.topk(min(size, len(mass))).indices.sort().values.int()


def _ones(text: Text) -> Tensor:
    return torch.ones(len(text.token_ids) - 1 - text.scored_from, dtype=torch.float64)


class Student(nn.Module):
    """A cut model with a head of some rows of the target's.

    The head is `shared @ adapter`: the target's own rows, frozen, after a trained [H, H] map that begins as the
    identity. With train_head the rows themselves are trained.
    """

    def __init__(self, model: PreTrainedModel, token_ids: Tensor, train_head: bool) -> None:
        super().__init__()
        self.token_ids = token_ids
        rows = model.get_output_embeddings().weight.detach()[token_ids.long()].float()
        self.body = model
        for frozen in (model.get_input_embeddings(), model.get_output_embeddings()):
            frozen.requires_grad_(False)
        self.rows = nn.Parameter(rows, requires_grad=train_head)
        self.dtype = trained_dtype()
        self.target_rows = rows.to(self.dtype)
        self.adapter = nn.Parameter(torch.eye(rows.shape[1]), requires_grad=not train_head)

    @torch.no_grad()
    def fit(self, batches: Iterable[Batch]) -> None:
        """Begins better than with the identity: the map that brings the states nearest to the target's, by ridge.

        Raises:
            ValueError: there are no batches.
        """
        hidden = self.adapter.shape[0]
        gram, moment = (torch.zeros(hidden, hidden, dtype=torch.float64) for _ in range(2))
        for batch in batches:
            states = self.states(batch.token_ids, batch.kept).double()
            gram += states.T @ states
            moment += states.T @ batch.states.double()
        mean = gram.diagonal().mean()
        if not mean > 0:
            raise ValueError("a student is fitted on at least one batch")
        adapter = torch.linalg.solve(gram + _RIDGE * mean * torch.eye(hidden), moment).float()
        if self.adapter.requires_grad:
            self.adapter.copy_(adapter)
        else:
            self.rows.copy_(self.rows @ adapter.T)

    def trained(self) -> dict[str, nn.Parameter]:
        """Parameters by name."""
        return {name: parameter for name, parameter in self.named_parameters() if parameter.requires_grad}

    def states(self, token_ids: Tensor, kept: Tensor) -> Tensor:
        """What `head()` gets at the kept positions of token ids [B, n], as flat indices: [N, H]."""
        with self._precision(token_ids):
            return engine_student.hidden(self.body, token_ids).flatten(0, 1)[kept]

    def forward(self, token_ids: Tensor, kept: Tensor) -> Tensor:
        """What `rows` get there: the same after the adapter."""
        states = self.states(token_ids, kept)
        if not self.adapter.requires_grad:
            return states
        with self._precision(token_ids):
            return states @ self.adapter

    def _precision(self, token_ids: Tensor) -> torch.autocast:
        return torch.autocast(token_ids.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16)

    def loss(self, batch: Batch, tv: float, sums: Sums) -> Tensor:
        """Mean loss of a batch; see `head_loss`."""
        targets = Targets(batch.states, batch.log_total, self.target_rows)
        return head_loss(self(batch.token_ids, batch.kept), self.rows, targets, tv, sums)

    def head(self) -> Tensor:
        """The rows of the head as they are used at inference, float32 [M, H]."""
        return (self.rows @ self.adapter.T).detach() if self.adapter.requires_grad else self.rows.detach()
