"""What is trained: layers cut from the target, and a head over part of the vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from draftproof.distill.batches import Batch
from draftproof.distill.corpus import Text
from draftproof.distill.loss import Sums, Targets, head_loss
from draftproof.engine import student as engine_student


def head_tokens(texts: Sequence[Text], size: int, vocab_size: int, favoured: Iterable[int] = ()) -> Tensor:
    """The `size` tokens that the target writes most often, ascending, int32; those in `favoured` in any case."""
    counts = np.zeros(vocab_size)
    for text in texts:
        counts += np.bincount(text.token_ids[text.scored_from + 1 :], minlength=vocab_size)
    counts[list(favoured)] = np.inf
    likeliest = np.argsort(-counts, kind="stable")[: min(size, vocab_size)]
    return torch.from_numpy(np.sort(likeliest).astype(np.int32))


class Student(nn.Module):
    """A cut model with a head of some rows of the target's.

    The head is `shared @ adapter`: the target's own rows, frozen, after a trained [H, H] map that begins as the
    identity. With train_head the rows themselves are trained.
    """

    def __init__(self, model: PreTrainedModel, token_ids: Tensor, train_head: bool) -> None:
        super().__init__()
        self.token_ids = token_ids
        rows = model.get_output_embeddings().weight.detach()[token_ids.long()].float()  # type: ignore[union-attr,index]
        model.requires_grad_(False)
        self.body = model
        decoder = model.get_decoder()
        for parameter in (*decoder.layers.parameters(), *decoder.norm.parameters()):  # type: ignore[union-attr]
            parameter.requires_grad_(True)
        self.rows = nn.Parameter(rows, requires_grad=train_head)
        self.target_rows = rows.bfloat16()
        self.adapter = nn.Parameter(torch.eye(rows.shape[1]), requires_grad=not train_head)

    def trained(self) -> dict[str, nn.Parameter]:
        """Parameters by name."""
        return {name: parameter for name, parameter in self.named_parameters() if parameter.requires_grad}

    def forward(self, token_ids: Tensor, kept: Tensor) -> Tensor:
        """States [N, H] for the rows of the head, of the kept positions of token ids [B, n]."""
        with torch.autocast("cpu", torch.bfloat16):
            states = engine_student.hidden(self.body, token_ids).flatten(0, 1)[kept]
            return torch.nn.functional.linear(states, self.adapter.T) if self.adapter.requires_grad else states

    def loss(self, batch: Batch, tv: float, sums: Sums) -> Tensor:
        """Mean loss of a batch; see `head_loss`."""
        targets = Targets(batch.states, batch.log_total, self.target_rows)
        return head_loss(self(batch.token_ids, batch.kept), self.rows, targets, tv, sums)

    def head(self) -> Tensor:
        """The rows of the head as they are used at inference, float32 [M, H]."""
        return (self.rows @ self.adapter.T).detach() if self.adapter.requires_grad else self.rows.detach()
