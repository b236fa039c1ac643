"""What certifying asks of a cluster: p at prefixes, and continuations through the whole of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from draftproof.certify.law import ContinuationLaw, Outcome, PrefixTree
from draftproof.cli.certify_cases import Case, pipeline_fields
from draftproof.client import AsyncClient, Completion
from draftproof.errors import ProtocolError

Told = Callable[[], None]

BATCH = 8
"""Requests at once that show how far p moves with the shape of a batch."""


@dataclass(slots=True)
class Tally:
    """What the continuations of one case were.

    Attributes:
        counts: of outcomes.
        sources: of the tokens that were tested, by where each came from.
        proposals, bytes: proposals verified and what they took on the wire.
        bent: continuations that the cluster itself called not lossless.
        loss: largest total variation of a token's law that the cluster reported.
    """

    counts: Counter[Outcome] = field(default_factory=Counter)
    sources: Counter[str] = field(default_factory=Counter)
    proposals: int = 0
    bytes: int = 0
    bent: int = 0
    loss: float = 0.0

    def add(self, law: ContinuationLaw, done: Completion) -> None:
        """Takes one continuation."""
        outcome = law.outcome(done.token_ids)
        self.counts[outcome] += 1
        self.sources.update(str(token.source) for token in done.tokens[: len(outcome)])
        self.proposals += done.stats.drafted
        self.bytes += done.stats.proposal_bytes
        self.bent += not done.lossless
        self.loss = max([self.loss, *(token.loss for token in done.tokens)])


async def grow(
    client: AsyncClient, case: Case, prompt: Sequence[int], prefixes: int, cells: int, told: Told
) -> ContinuationLaw:
    """Asks for p at the likeliest prefixes of a case.

    Raises:
        ProtocolError: an answer is no distribution.
    """
    tree = PrefixTree(case.sampling.max_tokens or 1, prefixes)
    fields = pipeline_fields(case.sampling)
    while (prefix := tree.wanted()) is not None:
        answer = await client.next_token(token_ids=prompt, output_ids=prefix, **fields)
        try:
            tree.add(np.asarray(answer.p))
        except ValueError as error:
            raise ProtocolError(f"p after {prefix}: {error}") from error
        told()
    return ContinuationLaw(tree, cells)


async def wobble(client: AsyncClient, case: Case, prompt: Sequence[int]) -> float:
    """Largest total variation between p at the prompt asked alone and as it is beside proposals and other requests."""
    fields = pipeline_fields(case.sampling)
    alone = np.asarray((await client.next_token(token_ids=prompt, **fields)).p, dtype=np.float64)

    async def beside() -> float:
        done = await client.generate(token_ids=prompt, sampling=case.sampling, trace="full")
        trace = done.tokens[0].trace
        if trace is None or trace.p is None:
            raise ProtocolError("the server recorded no trace")
        return 0.5 * float(np.abs(alone - np.asarray(trace.p.masses, dtype=np.float64)).sum())

    return max(await asyncio.gather(*(beside() for _ in range(BATCH))))


async def sample(
    client: AsyncClient,
    case: Case,
    prompt: Sequence[int],
    law: ContinuationLaw,
    total: int,
    streams: int,
    told: Told,
) -> Tally:
    """Continuations of a case, each with a fresh key of the target's own.

    Args:
        total: how many.
        streams: how many at once.
        told: called after each.
    """
    tally, numbers = Tally(), iter(range(total))

    async def worker() -> None:
        for _ in numbers:
            tally.add(law, await client.generate(token_ids=prompt, sampling=case.sampling))
            told()

    await asyncio.gather(*(worker() for _ in range(min(streams, total))))
    return tally
