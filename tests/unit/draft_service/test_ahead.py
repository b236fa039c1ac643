"""Drafting ahead changes no block, whatever the verdicts, the timing and the other sessions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draft_service.ahead import Foresight, Odds
from draft_service.drafters.interface import Guess, OpenBlock
from draft_service.drafters.model import ModelDrafter, encoder
from draft_service.drafters.ngram import NgramDrafter
from draftproof.sampling.draft_q import DraftQ, OneHot, support
from draftproof.sampling.params import Rule, SamplingParams
from draftproof.sampling.rng import Draw, Purpose
from draftproof.serving.drafting import DraftSequence, Proposal
from draftproof.testing.table import TableEngine
from draftproof.verification.round import RoundInput, verify_rounds

VOCAB = 12
TARGET = TableEngine(VOCAB, spread=2.5)
LENGTH = 16


@dataclass
class Request:
    """One request and what its rounds were."""

    sequence: DraftSequence
    gamma: int
    left: int = LENGTH
    blocks: list[list[tuple[int, list[float]]]] = field(default_factory=list)
    used: int = 0
    used_after_rejection: int = 0
    rejected: bool = False

    def verdict(self, proposals: list[Proposal]) -> None:
        """Commits what the target says."""
        of, tokens = self.sequence, [p.token_id for p in proposals]
        prefix = [*of.prompt_ids, *of.output_ids]
        logits = TARGET.logits_after([[*prefix, *tokens[:i]] for i in range(len(tokens) + 1)])
        (result,) = verify_rounds(
            logits,
            [
                RoundInput(
                    params=of.params,
                    prompt_ids=of.prompt_ids,
                    output_ids=of.output_ids,
                    key=of.key,
                    block_start=of.position,
                    tokens=tokens,
                    qs=[p.q for p in proposals if p.q is not None],
                )
            ],
        )
        self.blocks.append([(p.token_id, masses(p.q)) for p in proposals])
        committed = [*tokens[: result.accepted], result.next_id]
        self.rejected = result.accepted < len(tokens)
        of.output_ids += committed
        self.left -= len(committed)


def masses(q: DraftQ | None) -> list[float]:
    if q is None:
        return []
    ids, held = support(q)
    full = [0.0] * VOCAB
    for token, mass in zip(ids.tolist(), held.tolist(), strict=True):
        full[token] = mass
    return full


def request(number: int, gamma: int, temperature: float, **params: Any) -> Request:
    key = bytes([number]) * 32
    return Request(DraftSequence([number, 3, 1], SamplingParams(temperature=temperature, **params), key), gamma)


def play(
    requests: list[Request], drafter: ModelDrafter, steps: Iterator[int] | None, foresight: type[Foresight] = Foresight
) -> list[Request]:
    """Rounds by turns; `steps` says how many steps ahead fit in while a verdict is out, None that none is taken."""
    odds, out = Odds(), {}
    while any(r.left for r in requests):
        for r in requests:
            gamma = min(r.gamma, r.left - 1)
            if r.left < 1:
                continue
            block = OpenBlock(r.sequence, gamma)
            if (looked := out.pop(r.sequence, None)) is not None:
                found, _ = looked.settle(gamma, odds)
                if found is not None:
                    block.proposals, block.ended = found.proposals, found.ended
                    r.used += len(found.proposals)
                    r.used_after_rejection += r.rejected
            while not block.done:
                drafter.step([block])
            if steps is not None and block.proposals:
                looked = foresight(r.sequence, list(r.sequence.output_ids), block.proposals, r.gamma, r.left)
                out[r.sequence] = looked
                for _ in range(next(steps)):
                    if (ahead := looked.block(drafter, odds)) is not None:
                        drafter.step([ahead])
            r.verdict(block.proposals)
    return requests


def drafter(noise: float, slots: int = 4, encoding: str = "lattice") -> ModelDrafter:
    engine = TableEngine(VOCAB, spread=2.5, noise=noise, slots=slots, max_context=64)
    return ModelDrafter(engine, encoder(encoding, 128, 12), prefill_chunk=2)


def for_ever(steps: int) -> Iterator[int]:
    while True:
        yield steps


@settings(max_examples=25)
@given(
    steps=st.lists(st.integers(0, 14), min_size=1, max_size=20),
    gamma=st.integers(1, 5),
    temperature=st.sampled_from([0.0, 0.7, 1.2]),
    noise=st.sampled_from([0.0, 0.1, 0.5]),
    slots=st.sampled_from([1, 2, 4]),
    encoding=st.sampled_from(["lattice", "sparse", "dense"]),
    params=st.fixed_dictionaries(
        {
            "frequency_penalty": st.sampled_from([0.0, 0.8]),
            "rule": st.sampled_from([Rule.TOKEN, Rule.BLOCK, Rule.COUPLED]),
        }
    ),
)
def test_blocks_and_text_are_those_without(
    steps: list[int], gamma: int, temperature: float, noise: float, slots: int, encoding: str, params: dict[str, Any]
) -> None:
    def made() -> list[Request]:
        return [request(i, gamma, temperature, **params) for i in range(2)]

    def timing() -> Iterator[int]:
        while True:
            yield from steps

    plain = play(made(), drafter(noise, slots, encoding), None)
    ahead = play(made(), drafter(noise, slots, encoding), timing())
    for a, b in zip(plain, ahead, strict=True):
        assert a.sequence.output_ids == b.sequence.output_ids
        assert a.blocks == b.blocks


@pytest.mark.parametrize("rule", [Rule.TOKEN, Rule.BLOCK, Rule.COUPLED])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_draft_that_is_the_target_is_always_right(temperature: float, rule: Rule) -> None:
    """Its guess of the bonus token is the target's draw: same number or noise, same distribution."""
    (r,) = play([request(1, 3, temperature, rule=rule)], drafter(0.0), for_ever(20))
    assert r.used == sum(map(len, r.blocks)) - 3, "all but the first block were ready"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_rejection_is_guessed_too(temperature: float) -> None:
    """What comes in place of a proposal is often what q would have given without it."""
    requests = play([request(i, 4, temperature) for i in range(6)], drafter(0.3), for_ever(40))
    assert sum(r.used_after_rejection for r in requests) >= 3


class KeptAnyway(Foresight):
    """Sends the block although the verdict's last token isn't the guess."""

    def settle(self, gamma: int, odds: Odds) -> tuple[OpenBlock | None, int]:
        found = [b for b in self._blocks if b.guess is None and b.gamma == gamma and b.done]
        return (found[0] if found else None), 0


class OldNumbers(Foresight):
    """Draws ahead with the numbers of the block that is out."""

    def _open(self, guess: Guess, position: int) -> OpenBlock:
        block = super()._open(guess, position)
        real = block.sequence
        block.sequence = Displaced(real.prompt_ids, real.params, real.key, real.output_ids)
        return block


class Displaced(DraftSequence):
    @property
    def position(self) -> int:
        return super().position - 1


@pytest.mark.parametrize("wrong", [KeptAnyway, OldNumbers])
def test_wrong_variants_are_caught(wrong: type[Foresight]) -> None:
    plain = play([request(i, 3, 1.0) for i in range(6)], drafter(0.2), None)
    bent = play([request(i, 3, 1.0) for i in range(6)], drafter(0.2), for_ever(12), wrong)
    assert [r.blocks for r in plain] != [r.blocks for r in bent]


def test_a_session_that_lost_its_slot_is_not_drafted_for() -> None:
    """Work ahead must not push out who is waited for."""
    one = drafter(0.1, slots=1)
    a, b = request(1, 3, 1.0).sequence, request(2, 3, 1.0).sequence
    block = OpenBlock(a, 3)
    while not block.done:
        one.step([block])
    looked = Foresight(a, [], block.proposals, 3, LENGTH)
    other = OpenBlock(b, 1)
    while not other.done:
        one.step([other])
    ahead = looked.block(one, Odds())
    assert ahead is not None
    one.step([ahead])
    assert ahead.lost
    assert looked.block(one, Odds()) is None
    assert looked.idle
    assert list(one._cached) == [b]
    assert looked.settle(3, Odds()) == (None, 0)


def test_the_last_block_is_as_long_as_it_may_be() -> None:
    of = request(1, 3, 0.0).sequence
    one = drafter(0.0)
    block = OpenBlock(of, 3)
    while not block.done:
        one.step([block])
    looked = Foresight(of, [], block.proposals, 3, left=6)
    odds = Odds()
    while (ahead := looked.block(one, odds)) is not None:
        one.step([ahead])
    assert {len(b.proposals) for b in looked._blocks} == {1, 2, 3}
    assert all(len(b.sequence.output_ids) + len(b.proposals) + 1 <= 6 for b in looked._blocks)


def test_a_block_of_another_length_is_dropped() -> None:
    of = request(1, 3, 0.0)
    one = drafter(0.0)
    block = OpenBlock(of.sequence, 3)
    while not block.done:
        one.step([block])
    looked = Foresight(of.sequence, [], block.proposals, 3, LENGTH)
    odds = Odds()
    while (ahead := looked.block(one, odds)) is not None:
        one.step([ahead])
    of.verdict(block.proposals)
    assert looked.settle(2, odds)[0] is None
    found, wasted = looked.settle(3, odds)
    assert found is not None
    assert wasted == sum(len(b.proposals) for b in looked._blocks) - 3


def test_likely_guesses_come_first_and_hopeless_ones_never() -> None:
    odds = Odds()
    for _ in range(200):
        odds.learn(Guess(0, 5), 3, False)
        odds.learn(Guess(2, 5), 3, True)
        odds.learn(Guess(3, None), 3, False)

    class Drafter(NgramDrafter):
        def guesses(self, *_: Any) -> list[Guess]:
            return [Guess(3, None), Guess(0, 1), Guess(1, 1), Guess(2, 1)]

    proposals = [Proposal(0, OneHot(0))] * 3
    looked = Foresight(request(1, 3, 0.0).sequence, [], proposals, 3, LENGTH)
    order = []
    while (ahead := looked.block(Drafter(), odds)) is not None:
        ahead.ended = True
        order.append((len(ahead.sequence.output_ids), ahead.guess))
    assert order == [(3, None), (2, None), (3, Draw(bytes([1]) * 32, 3, 3, Purpose.NEXT))]


def test_prompt_lookup_guesses_nothing() -> None:
    of = request(1, 3, 0.0).sequence
    looked = Foresight(of, [], [Proposal(0, OneHot(0))], 3, LENGTH)
    assert looked.block(NgramDrafter(), Odds()) is None
    assert looked.idle
