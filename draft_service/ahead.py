"""Drafting ahead: the next block, for the verdicts that seem most likely while the real one is out.

Pure pre-computation. A block's draws are keyed by the position where it begins, and its q follows from the tokens
before it; so the block drafted for a guess is, where the guess comes true, the very block that would have been drafted
after the verdict. Where no guess does, everything is dropped, and drawn anew with numbers of another position. Either
way the text is a function of prompt, key and gamma alone, and says nothing of who was quicker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from draft_service.drafters.interface import Drafter, Guess, OpenBlock
from draftproof.sampling.rng import Draw, Purpose
from draftproof.serving.drafting import DraftSequence, Proposal

_DECAY = 0.98
_PRIOR_WEIGHT = 4.0
# an unlikely guess only keeps the drafter from work that somebody waits for
_LEAST = 0.02


class Odds:
    """How often guesses of each kind have come true, decayed: what to draft for first."""

    def __init__(self) -> None:
        self._tries: dict[tuple[int, int], float] = {}
        self._hits: dict[tuple[int, int], float] = {}

    def of(self, guess: Guess, gamma: int) -> float:
        """Chance that a guess about a block of `gamma` proposals comes true."""
        kind, prior = _kind(guess, gamma), 0.5 if guess.accepted == gamma else 0.1
        return (self._hits.get(kind, 0.0) + _PRIOR_WEIGHT * prior) / (self._tries.get(kind, 0.0) + _PRIOR_WEIGHT)

    def learn(self, guess: Guess, gamma: int, right: bool) -> None:
        """Takes what became of one."""
        kind = _kind(guess, gamma)
        self._tries[kind] = _DECAY * self._tries.get(kind, 0.0) + 1
        self._hits[kind] = _DECAY * self._hits.get(kind, 0.0) + right


def _kind(guess: Guess, gamma: int) -> tuple[int, int]:
    """Rejections by place, blocks that hold throughout by length."""
    return (-1, gamma) if guess.accepted == gamma else (guess.accepted, 0)


@dataclass(eq=False, slots=True)
class Foresight:
    """What is drafted while the verdict on one block is out. Touched by the model thread during steps alone.

    Attributes:
        sequence: the request.
        committed: its output when the block went out.
        proposals: that block.
        gamma: proposals of the next one.
        left: most tokens the sequence may still commit.
        idle: nothing is left to do.
    """

    sequence: DraftSequence
    committed: list[int]
    proposals: Sequence[Proposal]
    gamma: int
    left: int
    idle: bool = False
    _guesses: list[Guess] | None = None
    _blocks: list[OpenBlock] = field(default_factory=list)

    def block(self, drafter: Drafter, odds: Odds) -> OpenBlock | None:
        """The block to advance next; guesses are taken one after another, the likeliest first."""
        position = len(self.sequence.prompt_ids) + len(self.committed)
        length = len(self.proposals)
        if self._guesses is None:
            found = drafter.guesses(self.sequence, position, self.proposals)
            found.sort(key=lambda guess: -odds.of(guess, length))
            self._guesses = [guess for guess in found if guess.token is None or odds.of(guess, length) >= _LEAST]
        last = self._blocks[-1] if self._blocks else None
        if last is not None and last.lost:
            self._guesses = self._guesses[: len(self._blocks)]
        elif last is not None and not last.done:
            return last
        while len(self._blocks) < len(self._guesses):
            block = self._open(self._guesses[len(self._blocks)], position)
            self._blocks.append(block)
            if not block.done:
                return block
        self.idle = True
        return None

    def _open(self, guess: Guess, position: int) -> OpenBlock:
        of = self.sequence
        tokens = [*self.committed, *(p.token_id for p in self.proposals[: guess.accepted])]
        if guess.token is not None:
            tokens.append(guess.token)
        return OpenBlock(
            DraftSequence(of.prompt_ids, of.params, of.key, tokens),
            max(0, min(self.gamma, self.left - guess.accepted - 2)),
            ahead_of=of,
            certain=position,
            guess=Draw(of.key, position, guess.accepted, Purpose.NEXT) if guess.token is None else None,
        )

    def settle(self, gamma: int, odds: Odds) -> tuple[OpenBlock | None, int]:
        """The verdict is in and committed: the block that was drafted for it, if any, and how many others were drawn.

        Args:
            gamma: proposals that the block should have.
            odds: learns which guesses were right.
        """
        found, wasted = None, 0
        for guess, block in zip(self._guesses or (), self._blocks, strict=False):
            if block.lost or block.guess is not None:
                continue
            right = block.sequence.output_ids == self.sequence.output_ids
            odds.learn(guess, len(self.proposals), right)
            if right and block.gamma == gamma:
                found = block
            else:
                wasted += len(block.proposals)
        # those not begun are known to be wrong or right all the same
        for guess in (self._guesses or ())[len(self._blocks) :]:
            if guess.token is not None:
                tokens = [*(p.token_id for p in self.proposals[: guess.accepted]), guess.token]
                odds.learn(guess, len(self.proposals), tokens == self.sequence.output_ids[len(self.committed) :])
        return found, wasted
