"""Replayed outputs bend nothing: the law of what is made with them, and its independence of what they were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
import torch

from draft_service.drafters import replay
from draft_service.drafters.interface import OpenBlock
from draft_service.drafters.ngram import NgramDrafter
from draft_service.drafters.replay import ReplayDrafter
from draftproof.sampling.draft_q import draw
from draftproof.sampling.params import Rule, SamplingParams
from draftproof.sampling.rng import Draw, Purpose, fresh_key, random_words
from draftproof.serving.drafting import DraftSequence, Proposal
from draftproof.testing.statistics import g_test
from draftproof.verification.round import RoundInput, verify_rounds
from tests.exact.keyed_rounds import GAMMA, TOKENS, VOCAB
from tests.exact.test_real_generator import CAUGHT, LATTICES, LAW, LEVEL, LOGITS

PAIRS = 6_000
RULES = (Rule.TOKEN, Rule.BLOCK)
Text = tuple[int, ...]


class LatticeDrafter(NgramDrafter):
    """Draws from the tables' q with the request's own numbers, as a model's drafter does."""

    def step(self, blocks: Sequence[OpenBlock]) -> None:
        for block in blocks:
            of = block.sequence
            for k in range(block.gamma):
                q = LATTICES[context([*of.output_ids, *(p.token_id for p in block.proposals)])]
                (word,) = random_words([Draw(of.key, of.position, k, Purpose.DRAFT)])
                block.proposals.append(Proposal(draw(q, int(word)), q))


def context(output: Sequence[int]) -> int:
    return output[-1] if output else VOCAB


def run(drafter: ReplayDrafter, sequences: Sequence[DraftSequence]) -> list[Text]:
    """Drafts and verifies until every output is long enough, all in one batch a round; then releases them."""
    while waiting := [s for s in sequences if len(s.output_ids) < TOKENS]:
        blocks = [OpenBlock(sequence, GAMMA) for sequence in waiting]
        drafter.step(blocks)
        rounds, rows = [], []
        for block in blocks:
            of, tokens = block.sequence, [p.token_id for p in block.proposals]
            rows += [context([*of.output_ids, *tokens[:k]]) for k in range(len(tokens) + 1)]
            qs = [p.q for p in block.proposals if p.q is not None]
            rounds.append(
                RoundInput(
                    params=of.params,
                    prompt_ids=of.prompt_ids,
                    output_ids=of.output_ids,
                    key=of.key,
                    block_start=of.position,
                    tokens=tokens,
                    qs=qs,
                )
            )
        for asked, of, result in zip(rounds, waiting, verify_rounds(LOGITS[torch.tensor(rows)], rounds), strict=True):
            of.output_ids.extend([*asked.tokens[: result.accepted], result.next_id])
    for sequence in sequences:
        drafter.release(sequence)
    return [tuple(s.output_ids[:TOKENS]) for s in sequences]


def pairs(rule: Rule, same_key: bool = False) -> Counter[tuple[Text, Text]]:
    """First and second output of many prompts, the second drafted from the first."""
    drafter = ReplayDrafter(LatticeDrafter(), 4)
    outputs = []
    first = [DraftSequence([i], SamplingParams(rule=rule), fresh_key()) for i in range(PAIRS)]
    keys = [s.key if same_key else fresh_key() for s in first]
    outputs.append(run(drafter, first))
    second = [DraftSequence(s.prompt_ids, s.params, key) for s, key in zip(first, keys, strict=True)]
    outputs.append(run(drafter, second))
    return Counter(zip(*outputs, strict=True))


@pytest.fixture(autouse=True)
def fixed_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys as good as fresh ones, the same in every run; nothing is forgotten."""
    monkeypatch.setattr(replay, "PROMPTS", PAIRS)
    luck = torch.Generator().manual_seed(1)
    monkeypatch.setitem(
        globals(), "fresh_key", lambda: bytes(torch.randint(256, (32,), generator=luck, dtype=torch.uint8).tolist())
    )


@pytest.mark.parametrize("rule", RULES)
def test_an_output_and_the_one_drafted_from_it_are_independent_samples(rule: Rule) -> None:
    found = pairs(rule)
    assert sum(n for (first, second), n in found.items() if first == second) > 0
    joint = {(a, b): p * q for a, p in LAW.items() for b, q in LAW.items()}
    assert g_test(found, joint).p_value > LEVEL


@pytest.mark.parametrize("rule", RULES)
def test_replay_under_the_key_that_made_it_is_caught(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = replay._Memory.continued
    monkeypatch.setattr(replay._Memory, "continued", lambda self, key, output, gamma: kept(self, b"", output, gamma))
    second: Counter[Text] = Counter()
    for (_, output), n in pairs(rule, same_key=True).items():
        second[output] += n
    assert g_test(second, LAW).p_value < CAUGHT
