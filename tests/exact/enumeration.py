"""Exact laws by enumeration: every proposal, verdict and next token of every round, weighted by its probability.

A drafter is its block law: what it proposes after a prefix, with which probability, and which q it sends along. The
verdicts come from a rule's `outcome_law`, the probabilities half of the code the server runs, in float64.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray

from draftproof.verification import token_rule

Prefix = tuple[int, ...]
Vector = NDArray[np.float64]
Table = Callable[[Prefix], Vector]
"""A language model: the next token's distribution after a prefix."""
Law = dict[Prefix, float]


@dataclass(frozen=True)
class Block:
    """One block that may be verified after a prefix.

    Attributes:
        probability: of this block, given the prefix.
        tokens: the proposals that go into verification.
        qs: what each is said to be drawn from, float64[V].
    """

    probability: float
    tokens: Prefix
    qs: tuple[Vector, ...]


Drafter = Callable[[Prefix], Iterator[Block]]


def random_table(vocab: int, seed: int, kind: str = "dense") -> Table:
    """A context-dependent table: every prefix has its own random distribution.

    Kinds: dense; zeros (about half the tokens impossible); one_hot; ties (multiples of 1/8, many equal); even and odd
    (all mass on even or on odd tokens, disjoint from each other).
    """
    known: dict[Prefix, Vector] = {}

    def table(prefix: Prefix) -> Vector:
        if prefix not in known:
            known[prefix] = _random_row(np.random.default_rng([seed, len(prefix), *prefix]), vocab, kind)
        return known[prefix]

    return table


def _random_row(rng: np.random.Generator, vocab: int, kind: str) -> Vector:
    if kind == "ties":
        return np.bincount(rng.integers(vocab, size=8), minlength=vocab) / 8
    row = rng.gamma(0.7, size=vocab) + 1e-3
    match kind:
        case "zeros":
            row[rng.random(vocab) < 0.5] = 0.0
        case "one_hot":
            row[:] = 0.0
        case "even":
            row[1::2] = 0.0
        case "odd":
            row[::2] = 0.0
    if not row.any():
        row[rng.integers(vocab)] = 1.0
    return row / row.sum()


def tempered(row: Vector, temperature: float) -> Vector:
    """The row at another temperature; zeros stay zeros."""
    powered = np.where(row > 0, row, 0.0) ** (1 / temperature)
    return powered / powered.sum()


def honest(q: Table, more: Callable[[Prefix, Prefix, tuple[Vector, ...]], bool]) -> Drafter:
    """A drafter that draws from the q it sends and decides whether to go on before each draw.

    Args:
        q: the draft's table.
        more: (prefix, proposals so far, their q) -> draw another?
    """
    return drawing(q, q, more)


def drawing(q: Table, drawn: Table, more: Callable[[Prefix, Prefix, tuple[Vector, ...]], bool]) -> Drafter:
    """A drafter that sends q but draws from another table."""

    def blocks(prefix: Prefix) -> Iterator[Block]:
        yield from extend(prefix, Block(1.0, (), ()))

    def extend(prefix: Prefix, block: Block) -> Iterator[Block]:
        if not more(prefix, block.tokens, block.qs):
            yield block
            return
        context = prefix + block.tokens
        for token, probability in enumerate(drawn(context)):
            if probability > 0:
                longer = Block(block.probability * probability, (*block.tokens, token), (*block.qs, q(context)))
                yield from extend(prefix, longer)

    return blocks


def fixed(gamma: int) -> Callable[[Prefix, Prefix, tuple[Vector, ...]], bool]:
    """Always gamma proposals."""
    return lambda prefix, tokens, qs: len(tokens) < gamma


def output_law(p: Table, drafter: Drafter, tokens: int, vocab: int, rule: ModuleType = token_rule) -> Law:
    """Joint law of the first `tokens` committed tokens under a rule, over as many rounds as that takes."""
    waiting: list[dict[Prefix, float]] = [defaultdict(float) for _ in range(tokens)]
    law: dict[Prefix, float] = defaultdict(float)
    waiting[0][()] = 1.0
    for states in waiting:
        for prefix, probability in states.items():
            for committed, share in round_law(p, drafter, prefix, vocab, rule):
                longer = prefix + committed
                if len(longer) >= tokens:
                    law[longer[:tokens]] += probability * share
                else:
                    waiting[len(longer)][longer] += probability * share
    return dict(law)


def round_law(
    p: Table, drafter: Drafter, prefix: Prefix, vocab: int, rule: ModuleType = token_rule
) -> Iterator[tuple[Prefix, float]]:
    """(committed tokens, probability) of one round, all blocks in one ragged batch."""
    blocks = list(drafter(prefix))
    gamma = max(len(block.tokens) for block in blocks)
    p_rows = np.full((len(blocks), gamma + 1, vocab), 1 / vocab)
    q_rows = np.full((len(blocks), gamma, vocab), 1 / vocab)
    proposals = np.zeros((len(blocks), gamma), np.int64)
    for b, block in enumerate(blocks):
        for i in range(len(block.tokens) + 1):
            p_rows[b, i] = p(prefix + block.tokens[:i])
        for i, q in enumerate(block.qs):
            q_rows[b, i] = q
            proposals[b, i] = block.tokens[i]
    lengths = torch.tensor([len(block.tokens) for block in blocks])
    outcomes = rule.outcome_law(
        torch.from_numpy(p_rows), torch.from_numpy(q_rows), torch.from_numpy(proposals), lengths
    ).numpy()
    for b, k, token in np.argwhere(outcomes != 0).tolist():
        block = blocks[b]
        yield (*block.tokens[:k], token), block.probability * float(outcomes[b, k, token])


def target_law(p: Table, tokens: int, vocab: int) -> Law:
    """Joint law of `tokens` tokens drawn from the target alone."""
    law: Law = {}
    for sequence in product(range(vocab), repeat=tokens):
        probability = 1.0
        for i, token in enumerate(sequence):
            probability *= float(p(sequence[:i])[token])
        law[sequence] = probability
    return law


def distance(a: Law, b: Law) -> float:
    """Largest difference of any one probability."""
    return max(abs(a.get(key, 0.0) - b.get(key, 0.0)) for key in a.keys() | b.keys())
