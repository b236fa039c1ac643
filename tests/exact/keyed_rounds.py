"""Many outputs with the real generator, vectorised over outputs: the token rule and block verification on two tokens.

Enumeration treats random numbers as independent, so it can't see one being used twice. This can. The layout of the
counters is a parameter: `by_block` is the library's, `by_position` names a number by its position in the output alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftproof.sampling.rng import Purpose, unit, words

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

VOCAB, GAMMA, TOKENS = 2, 2, 4

# Row c: the next token's distribution after token c; row 2: after the prompt.
P: Floats = np.array([[0.8, 0.2], [0.3, 0.7], [0.5, 0.5]])
Q: Floats = np.array([[0.4, 0.6], [0.6, 0.4], [0.7, 0.3]])

Layout = Callable[[Ints, int], tuple[Ints, Ints]]
"""(block starts, offset) -> the counter's first two words."""


def by_block(start: Ints, offset: int) -> tuple[Ints, Ints]:
    """The library's layout."""
    return start, np.full_like(start, offset)


def by_position(start: Ints, offset: int) -> tuple[Ints, Ints]:
    """Wrong for a rule that judges a block as a whole: a later block meets the numbers of an earlier one again."""
    return np.zeros_like(start), start + offset


@dataclass(frozen=True)
class Numbers:
    """Uniforms of a batch of outputs, each with its own key."""

    keys: NDArray[np.uint64]
    start: Ints
    layout: Layout

    def at(self, offset: int, purpose: Purpose) -> Floats:
        first, second = self.layout(self.start, offset)
        zero = np.zeros_like(first)
        counters = np.stack([first, second, zero, zero + int(purpose)], axis=1).astype(np.uint64)
        return unit(words(self.keys, counters)[:, 0])


Rule = Callable[[list[Ints], list[Ints], Numbers], tuple[Ints, Floats]]
"""(contexts, proposals, numbers) -> (accepted, weights of the next token)."""


def token_rule(contexts: list[Ints], proposals: list[Ints], numbers: Numbers) -> tuple[Ints, Floats]:
    """u * q < p, one proposal after another."""
    accepted = np.zeros(len(proposals[0]), np.int64)
    for i, x in enumerate(proposals):
        u = numbers.at(i, Purpose.ACCEPT)
        accepted += (accepted == i) & (u * Q[contexts[i], x] < P[contexts[i], x])
    weights = P[contexts[GAMMA]]
    for i in range(GAMMA):
        left = np.maximum(P[contexts[i]] - Q[contexts[i]], 0.0)
        weights = np.where((accepted == i)[:, None], left, weights)
    return accepted, weights


def block_rule(contexts: list[Ints], proposals: list[Ints], numbers: Numbers) -> tuple[Ints, Floats]:
    """Block verification (Sun et al. 2024, arXiv 2403.10444): the longest prefix that passes its own test stays."""
    accepted = np.zeros(len(proposals[0]), np.int64)
    joint = np.ones(len(accepted))
    weights = np.maximum(P[contexts[0]] - Q[contexts[0]], 0.0)
    for i, x in enumerate(proposals, start=1):
        joint = np.minimum(1.0, joint * P[contexts[i - 1], x] / Q[contexts[i - 1], x])
        if i < GAMMA:
            left = np.maximum(joint[:, None] * P[contexts[i]] - Q[contexts[i]], 0.0)
            surplus = left.sum(axis=1)
            passes = surplus / (surplus + 1.0 - joint)
        else:
            left, passes = P[contexts[i]], joint
        passed = numbers.at(i - 1, Purpose.ACCEPT) < passes
        accepted = np.where(passed, i, accepted)
        weights = np.where(passed[:, None], left, weights)
    return accepted, weights


def sample(rule: Rule, layout: Layout, outputs: int, seed: int) -> dict[tuple[int, ...], int]:
    """Counts of the first four tokens of many outputs."""
    keys = np.random.default_rng(seed).integers(2**64, size=(outputs, 4), dtype=np.uint64)
    text = np.full((outputs, TOKENS + GAMMA + 1), -1)
    length = np.zeros(outputs, np.int64)
    while (going := np.flatnonzero(length < TOKENS)).size:
        start = length[going]
        numbers = Numbers(keys[going], start, layout)
        contexts = [np.where(start > 0, text[going, start - 1], VOCAB)]
        proposals: list[Ints] = []
        for i in range(GAMMA):
            proposals.append((numbers.at(i, Purpose.DRAFT) >= Q[contexts[i], 0]).astype(np.int64))
            contexts.append(proposals[i])
        accepted, weights = rule(contexts, proposals, numbers)
        u = np.zeros(len(going))
        for k in range(GAMMA + 1):
            u = np.where(accepted == k, numbers.at(k, Purpose.NEXT), u)
        following = (u * weights.sum(axis=1) >= weights[:, 0]).astype(np.int64)
        for i in range(GAMMA):
            text[going, start + i] = np.where(accepted > i, proposals[i], text[going, start + i])
        text[going, start + accepted] = following
        length[going] = start + accepted + 1
    outcomes, counts = np.unique(text[:, :TOKENS], axis=0, return_counts=True)
    return {tuple(outcome): int(count) for outcome, count in zip(outcomes.tolist(), counts, strict=True)}


def chi_square(counts: dict[tuple[int, ...], int], law: dict[tuple[int, ...], float]) -> float:
    """Pearson's statistic over the 16 outcomes, 15 degrees of freedom."""
    total = sum(counts.values())
    return sum((counts.get(x, 0) - total * mass) ** 2 / (total * mass) for x, mass in law.items())


def p_table(prefix: tuple[int, ...]) -> Floats:
    """The target as a table, for the enumeration."""
    return P[prefix[-1] if prefix else VOCAB]


def q_table(prefix: tuple[int, ...]) -> Floats:
    """The draft as a table, for the enumeration."""
    return Q[prefix[-1] if prefix else VOCAB]
