"""Replay: earlier outputs of the same prompt as drafts, as when a policy is sampled again after a small step.

Liu et al. 2025, "SPEC-RL" (arXiv 2509.23232), in its lossless setting. q is one-hot, and the law exact for any proposal
that doesn't depend on the request's own random numbers. Hence three rules:

- An output is never proposed under the key that made it: it was chosen by those very numbers (L9). Another key's output
  may have been drafted from it, and says nothing about them all the same: given its proposals it is a sample of the
  target's law.
- A lossy rule breaks that argument. Requests under one neither replay nor are remembered.
- Where a seed promises a text, what was remembered must not decide where blocks end: such requests are drafted for as
  without replay. They are remembered.

How many outputs are kept is a matter of counts alone, so that no output's length decides about another.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from draft_service.drafters.interface import Drafter, Guess, OpenBlock
from draftproof.engine.interface import Update
from draftproof.sampling.draft_q import OneHot
from draftproof.serving.drafting import DraftSequence, Proposal

PROMPTS: Final = 4096
"""Prompts remembered, those longest unused forgotten first."""


@dataclass(slots=True)
class _Memory:
    """Outputs of one prompt by the key that made them, the oldest first."""

    outputs: OrderedDict[bytes, array[int]] = field(default_factory=OrderedDict)

    def add(self, key: bytes, output_ids: Sequence[int], most: int) -> None:
        self.outputs.pop(key, None)
        self.outputs[key] = array("I", output_ids)
        while len(self.outputs) > most:
            self.outputs.popitem(last=False)

    def continued(self, key: bytes, output_ids: Sequence[int], gamma: int) -> list[int]:
        """Up to `gamma` tokens that follow this output in those that begin with it.

        Each is the one that most of them go on with, of equals the latest's; the next is by those that agree.
        """
        at = len(output_ids)
        begun = array("I", output_ids)
        others = [output for made_by, output in reversed(self.outputs.items()) if made_by != key]
        alike = [output for output in others if len(output) > at and output[:at] == begun]
        tokens: list[int] = []
        while alike and len(tokens) < gamma:
            # most_common() keeps the order of first appearance among equals
            token = Counter(output[at] for output in alike).most_common(1)[0][0]
            tokens.append(token)
            at += 1
            alike = [output for output in alike if output[at - 1] == token and len(output) > at]
        return tokens


class ReplayDrafter:
    """Proposes what earlier outputs of the prompt go on with; where none begins alike, another drafter does.

    Args:
        inner: that other drafter.
        outputs: most that are remembered of a prompt, >= 1.
    """

    def __init__(self, inner: Drafter, outputs: int) -> None:
        self.name = f"{inner.name}+replay"
        self.width = inner.width
        self._inner = inner
        self._outputs = outputs
        self._memories: OrderedDict[tuple[int, ...], _Memory] = OrderedDict()
        self._replaying: set[DraftSequence] = set()

    @property
    def weights_sha256(self) -> bytes:
        """The other drafter's."""
        return self._inner.weights_sha256

    @property
    def forward_ns(self) -> int:
        """The other drafter's."""
        return self._inner.forward_ns

    def step(self, blocks: Sequence[OpenBlock]) -> None:
        """Fills and ends blocks that an earlier output goes on with; the others are the other drafter's."""
        left = []
        for block in blocks:
            tokens = [] if block.proposals or block.ahead_of is not None else self._replayed(block)
            if tokens:
                self._replaying.add(block.sequence)
                block.proposals.extend(Proposal(token, OneHot(token)) for token in tokens)
                block.ended = True
            else:
                self._replaying.discard(block.sequence)
                left.append(block)
        if left:
            self._inner.step(left)

    def guesses(self, sequence: DraftSequence, position: int, proposals: Sequence[Proposal]) -> list[Guess]:
        """The other drafter's about its own blocks. Behind a replayed one comes another, as a rule, in no time."""
        return [] if sequence in self._replaying else self._inner.guesses(sequence, position, proposals)

    def release(self, sequence: DraftSequence) -> None:
        """Frees the sequence and remembers its output."""
        self._inner.release(sequence)
        self._replaying.discard(sequence)
        if sequence.output_ids and not sequence.params.rule.lossy:
            self._memory(sequence).add(sequence.key, sequence.output_ids, self._outputs)
            while len(self._memories) > PROMPTS:
                self._memories.popitem(last=False)

    def install(self, update: Update) -> None:
        """Other weights for the other drafter. What has been remembered stays: proposals may come from anywhere."""
        self._inner.install(update)

    def _replayed(self, block: OpenBlock) -> list[int]:
        sequence = block.sequence
        if sequence.params.rule.lossy or sequence.params.needs_same_blocks:
            return []
        return self._memory(sequence).continued(sequence.key, sequence.output_ids, block.gamma)

    def _memory(self, sequence: DraftSequence) -> _Memory:
        prompt = tuple(sequence.prompt_ids)
        memory = self._memories.setdefault(prompt, _Memory())
        self._memories.move_to_end(prompt)
        return memory
