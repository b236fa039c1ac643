"""Recall: a draft model's distribution mixed with what the text itself suggests.

A small model is bad at copying, and prompt lookup is bad at everything else. The mixture (1 − w) q + w δ, where δ is
the token that followed the longest earlier occurrence of the last tokens and w how far such a match can be trusted, is
better than both: near Σ min(p, q) of the better one wherever the two part. It is mixed into the logits, before
temperature and the rest of the pipeline, so that q is what a model of these logits would propose. Like all q it is a
function of the tokens before it, known before the draw (L6).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from draft_service.drafters.interface import OpenBlock
from draft_service.drafters.suffixes import SuffixIndex
from draftproof.serving.drafting import DraftSequence

TRUST: Final = (0.07, 0.45, 0.65, 0.8, 0.9, 0.9, 0.93, 0.93, 0.93, 0.97)
"""w after a match of 1, 2, … tokens: where Σ min(p, q) was greatest on chat that the embedded model wrote."""


class Recall:
    """Leans logits towards what followed the last tokens before; remembers one text a sequence."""

    def __init__(self) -> None:
        self._indexes: dict[DraftSequence, SuffixIndex] = {}

    def lean(self, logits: Tensor, blocks: Sequence[OpenBlock], tails: Sequence[Sequence[int]]) -> Tensor:
        """Mixes each row's suggestion in. A row depends on its text alone, whatever was asked before.

        Args:
            logits: [N, V].
            blocks: one a row.
            tails: per row the tokens behind those that are certain.

        Returns:
            Logits [N, V], float32.
        """
        rows, tokens, odds = [], [], []
        for row, (block, tail) in enumerate(zip(blocks, tails, strict=True)):
            index = self._index(block)
            length, after = index.find(tail)
            if length:
                known = len(index.tokens)
                rows.append(row)
                tokens.append(index.tokens[after] if after < known else tail[after - known])
                odds.append(TRUST[length - 1] / (1.0 - TRUST[length - 1]))
        logits = logits.float()
        if not rows:
            return logits
        # softmax is much faster here than logsumexp, and tells as much
        chosen = logits[rows]
        q = chosen.softmax(-1)
        top, at = chosen.max(-1, keepdim=True)
        log_total = top - q.gather(-1, at).log()
        column = torch.tensor(tokens, device=logits.device)[:, None]
        leaning = log_total + (q.gather(-1, column) + torch.tensor(odds, device=logits.device)[:, None]).log()
        return logits.index_put((torch.tensor(rows, device=logits.device), column[:, 0]), leaning[:, 0])

    def release(self, sequence: DraftSequence) -> None:
        """Forgets a sequence's text."""
        self._indexes.pop(sequence, None)

    def _index(self, block: OpenBlock) -> SuffixIndex:
        owner = block.ahead_of or block.sequence
        index = self._indexes.get(owner)
        if index is None or len(index.tokens) > block.certain:
            index = self._indexes[owner] = SuffixIndex(1, len(TRUST))
        index.extend(block.sequence.tokens(len(index.tokens), block.certain))
        return index
