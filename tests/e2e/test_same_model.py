"""draft = target: everything is accepted, but for what rounding takes.

With p and q the very same array acceptance is 1 exactly (the unit tests of the token rule). Through the stack the two
processes compute q and p in batches of different shape, so they differ by float32 rounding; and a lattice rounds q.

Bound for the lattice: largest-remainder rounding to 2^k counts moves at most V/4 counts in total (worst where every
remainder is 1/2), so TV(q, lattice) <= V / (4 * 2^k) at each position, and a block of gamma has its i-th proposal
accepted with probability at least (1 - TV)^i.
"""

from __future__ import annotations

import asyncio

import pytest

from draftproof import AsyncClient, Completion
from tests.e2e.conftest import Models
from tests.e2e.family import PROMPT
from tests.e2e.processes import Launcher, Running

GAMMA = 4
TOKENS = 200
REQUESTS = 64
VOCAB = 32
BITS = 12
SLOTS = ("--slots", "64")


@pytest.fixture(scope="module")
def target(shared_launcher: Launcher, models: Models) -> Running:
    """The target whose weights the draft has, too."""
    return shared_launcher.target(models.target(VOCAB), *SLOTS, "--max-batch-tokens", "4096")


async def many(address: str) -> list[Completion]:
    """Long continuations at temperature 1."""
    async with AsyncClient(address) as client:
        return await asyncio.gather(
            *(
                client.generate(token_ids=PROMPT, seed=i, max_tokens=TOKENS, gamma=GAMMA, ignore_eos=True)
                for i in range(REQUESTS)
            )
        )


@pytest.mark.parametrize(
    ("encoding", "lost"),
    [
        ("dense", 1e-4),
        pytest.param("sparse", 1e-4, marks=pytest.mark.exact_family),
        ("lattice", VOCAB / (4 * 2**BITS)),
    ],
)
async def test_nothing_is_rejected_but_by_rounding(
    shared_launcher: Launcher, target: Running, models: Models, encoding: str, lost: float
) -> None:
    arguments = ("--drafter", "model", "--q-encoding", encoding, "--lattice-bits", str(BITS))
    draft = shared_launcher.draft(target, models.draft(VOCAB, "same"), *SLOTS, *arguments)
    done = await many(draft.address)
    draft.stop()
    drafted = sum(c.stats.drafted for c in done)
    accepted = sum(c.stats.accepted for c in done)
    print(f"\n{encoding}: 1 - acceptance = {1 - accepted / drafted:.2g} of {drafted} proposals, bound {lost:.2g}")
    assert drafted > 9_000
    if encoding == "lattice":
        at_least = sum((1 - lost) ** i for i in range(1, GAMMA + 1)) / GAMMA
        assert accepted / drafted >= at_least
        # the mass that rounding moved is there to be seen: a lattice isn't the dense q under another name
        assert accepted < drafted
    else:
        assert accepted / drafted >= 1 - lost
    assert all(c.lossless for c in done)
