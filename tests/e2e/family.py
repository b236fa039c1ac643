"""The family of configurations whose output law is tested through the real stack, and how one is sampled and judged.

Temperature × filter alone have 15 pairs, so that is the least a pairwise cover takes: fifteen configurations with a
draft model cover every pair of temperature, filter, draft, encoding and lossless rule, and five more every pair of the
prompt-lookup drafter's one-hot q with a temperature or a filter. Vocabulary and gamma alternate.

V = 8 is judged by the joint law of three tokens (585 outcomes with the end of sequence), V = 32 by the marginals of
each of the three. Cells are pooled to an expected count of 10 from law and sample size alone. One family-wise level,
ALPHA, by Holm's procedure over all P_VALUES of the family: it rejects something exactly when the smallest p-value is
at most ALPHA / P_VALUES, so each configuration can be judged by itself.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from draftproof import AsyncClient
from draftproof.sampling.params import Rule, SamplingParams
from draftproof.testing.statistics import GTest, g_test, marginal, power

TOTAL = 20_000
ALPHA = 1e-4
CAUGHT = 1e-6
LENGTH = 3
CONCURRENCY = 96

PROMPT = (0, 1, 2, 3, 4, 5, 6, 0, 2, 4, 6, 1, 3, 5, 0, 1, 2)
"""Its last tokens stood in it before, so that prompt lookup has something to propose."""

TEMPERATURES = (0.7, 1.0, 1.3)
FILTERS: Mapping[str, Mapping[str, float]] = {
    "none": {},
    "top-k": {"top_k": 4},
    "top-p": {"top_p": 0.8},
    "min-p": {"min_p": 0.15},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.3},
}
DRAFTS = ("good", "bad", "garbage")
ENCODINGS = ("lattice", "sparse", "dense")
RULES = (Rule.BLOCK, Rule.TOKEN, Rule.COUPLED)

Outcome = tuple[int, ...]
Law = Mapping[Outcome, float]


@dataclass(frozen=True)
class Configuration:
    """One cell of the family.

    Attributes:
        draft: good, bad, garbage; or ngram, whose encoding is one-hot.
    """

    temperature: float
    filter: str
    draft: str
    encoding: str
    vocab_size: int
    gamma: int
    rule: Rule = Rule.BLOCK

    def __str__(self) -> str:
        cell = f"{self.temperature}-{self.filter}-{self.draft}-{self.encoding}-V{self.vocab_size}-g{self.gamma}"
        return f"{cell}-{self.rule}"

    @property
    def sampling(self) -> SamplingParams:
        """Settings of every request; the third token, too, can come from the draft if gamma is 3."""
        settings: dict[str, Any] = dict(FILTERS[self.filter])
        return SamplingParams(
            rule=self.rule,
            temperature=self.temperature,
            gamma=self.gamma,
            max_tokens=max(LENGTH, self.gamma + 1),
            **settings,
        )

    @property
    def drafter(self) -> list[str]:
        """Options of the draft process."""
        if self.draft == "ngram":
            return ["--drafter", "ngram"]
        # ahead of every verdict, whether it pays or not: the law must not notice
        return ["--drafter", "model", "--q-encoding", self.encoding, "--draft-ahead"]


def _family() -> list[Configuration]:
    found = []
    for f, name in enumerate(FILTERS):
        for t, temperature in enumerate(TEMPERATURES):
            index = 3 * f + t
            draft, encoding = DRAFTS[(t + f) % 3], ENCODINGS[(t + 2 * f) % 3]
            rule = RULES[(t + (1, 2, 0, 2, 1)[f]) % 3]
            found.append(Configuration(temperature, name, draft, encoding, (8, 32)[index % 2], 1 + f % 3, rule))
        rule = RULES[(f + 1) % 3]
        found.append(Configuration(TEMPERATURES[f % 3], name, "ngram", "one-hot", (32, 8)[f % 2], 1 + f % 3, rule))
    return found


# In this order a process serves several configurations.
FAMILY = sorted(_family(), key=lambda c: (c.vocab_size, c.draft, c.encoding))
TREES = (
    Configuration(1.0, "none", "bad", "lattice", 8, 2, Rule.TREE),
    Configuration(0.7, "penalties", "good", "sparse", 8, 3, Rule.TREE),
    Configuration(1.3, "top-p", "garbage", "lattice", 32, 3, Rule.TREE),
    Configuration(0.7, "top-k", "ngram", "one-hot", 8, 3, Rule.TREE),
)
"""Under the tree rule, whatever the encoding, models send lattices."""
P_VALUES = sum(1 if c.vocab_size == 8 else LENGTH for c in (*FAMILY, *TREES))


async def sample(address: str, sampling: SamplingParams, total: int, seed: int) -> Counter[Outcome]:
    """First tokens of many continuations of PROMPT, seeded one after another."""
    settings = {name: getattr(sampling, name) for name in SamplingParams.__slots__ if name != "seed"}
    counts: Counter[Outcome] = Counter()
    seeds = iter(range(seed, seed + total))
    async with AsyncClient(address) as client:

        async def worker() -> None:
            for number in seeds:
                done = await client.generate(token_ids=PROMPT, sampling=SamplingParams(**settings, seed=number))
                assert done.lossless
                counts[done.token_ids[:LENGTH]] += 1

        async with asyncio.TaskGroup() as group:
            for _ in range(CONCURRENCY):
                group.create_task(worker())
    return counts


def judge(counts: Counter[Outcome], law: Law, vocab_size: int) -> list[GTest]:
    """The joint law at V = 8, the marginals otherwise."""
    if vocab_size == 8:
        return [g_test(counts, law)]
    return [g_test(Counter(marginal(counts, i)), marginal(law, i)) for i in range(LENGTH)]


def smallest_distance(law: Law, total: int, wanted: float = 0.99) -> float:
    """Total variation that the joint test finds with probability `wanted`, in the direction that is hardest to see.

    That is the one in which half of the mass grows and half shrinks, each in proportion (Pinsker's bound is met there).
    """
    growing: set[Outcome] = set()
    mass = 0.0
    for outcome, share in sorted(law.items(), key=lambda item: -item[1]):
        if mass + share <= 0.5:
            growing.add(outcome)
            mass += share
    low, high = 0.0, 0.49
    while high - low > 1e-4:
        middle = (low + high) / 2
        shifted = {o: s * (1 + middle / mass if o in growing else 1 - middle / (1 - mass)) for o, s in law.items()}
        if power(law, shifted, total, ALPHA / P_VALUES) < wanted:
            low = middle
        else:
            high = middle
    return high
