"""Recall: q leans towards what followed the last tokens before, by as much as the match can be trusted."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from draft_service.drafters.interface import OpenBlock
from draft_service.drafters.model import ModelDrafter, encoder
from draft_service.drafters.recall import TRUST, Recall
from draftproof.sampling.draft_q import OneHot, support
from draftproof.sampling.params import SamplingParams
from draftproof.sampling.rng import Draw, Purpose
from draftproof.serving.drafting import DraftSequence
from draftproof.testing.table import TableEngine

VOCAB = 16
KEY = bytes(range(32))


def sequence(prompt: list[int], output: list[int] | None = None, **params: float) -> DraftSequence:
    return DraftSequence(prompt, SamplingParams(**params), KEY, output or [])  # type: ignore[arg-type]


def lean(logits: torch.Tensor, of: DraftSequence, tail: list[int] | None = None) -> torch.Tensor:
    return Recall().lean(logits, [OpenBlock(of, 4)], [tail or []])


@pytest.mark.parametrize(
    ("prompt", "length", "token"),
    [([1, 2, 3, 4, 2, 3], 2, 4), ([5, 6, 5], 1, 6), ([*range(12), *range(11)], 10, 11), ([7, 7, 7], 2, 7)],
)
@pytest.mark.parametrize("seed", range(3))
def test_the_mixture(prompt: list[int], length: int, token: int, seed: int) -> None:
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3
    weight = TRUST[length - 1]
    q = (1 - weight) * logits.double().softmax(-1)
    q[0, token] += weight
    assert torch.allclose(lean(logits, sequence(prompt)).double().softmax(-1), q, atol=1e-6)


def test_a_token_the_model_does_not_know_gets_its_share() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 6] = -torch.inf
    q = lean(logits, sequence([5, 6, 5])).softmax(-1)[0]
    assert float(q[6]) == pytest.approx(TRUST[0], abs=1e-6)


def test_a_text_without_repetition_is_the_models_alone() -> None:
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(0))
    assert torch.equal(lean(logits, sequence([1, 2, 3])), logits)


def test_what_is_not_a_number_stays_so() -> None:
    logits = torch.full((1, VOCAB), torch.nan)
    assert bool(lean(logits, sequence([5, 6, 5])).isnan().all())


def test_proposals_count_as_text() -> None:
    logits = torch.zeros(1, VOCAB)
    together = lean(logits, sequence([1, 2, 3, 9, 2, 3]))
    assert torch.equal(lean(logits, sequence([1, 2, 3, 9]), [2, 3]), together)
    assert not torch.equal(lean(logits, sequence([1, 2, 3, 9]), []), together)


def test_one_text_says_nothing_about_another() -> None:
    recall = Recall()
    logits = torch.zeros(2, VOCAB)
    blocks = [OpenBlock(sequence([1, 2, 1]), 4), OpenBlock(sequence([3, 4, 5, 1]), 4)]
    found = recall.lean(logits, blocks, [[], []])
    assert float(found[0, 2]) > 0
    assert torch.equal(found[1], logits[1])


def hybrid() -> ModelDrafter:
    return ModelDrafter(TableEngine(VOCAB, order=2), encoder("lattice", 128, 12), recalls=True)


def draw(drafter: ModelDrafter, block: OpenBlock) -> list[tuple[int, list[int], list[float]]]:
    while not block.done and not block.lost:
        drafter.step([block])
    told = []
    for proposal in block.proposals:
        assert proposal.q is not None
        ids, masses = support(proposal.q)
        told.append((proposal.token_id, ids.tolist(), masses.tolist()))
    return told


def test_a_block_drafted_ahead_is_the_block_drafted_after_the_verdict() -> None:
    drafter = hybrid()
    of = sequence([1, 2, 3, 1, 2], temperature=0.8)
    first = OpenBlock(of, 3)
    tokens = [token for token, _, _ in draw(drafter, first)]
    guessed = dataclasses.replace(of, output_ids=[*tokens, 2])
    ahead = OpenBlock(guessed, 3, ahead_of=of, certain=of.position)
    early = draw(drafter, ahead)
    of.output_ids += [*tokens, 2]
    late = draw(drafter, OpenBlock(of, 3))
    cold = draw(hybrid(), OpenBlock(dataclasses.replace(of), 3))
    assert early == late == cold


def test_a_guess_that_was_wrong_is_forgotten() -> None:
    drafter = hybrid()
    of = sequence([1, 2, 3], temperature=0.8)
    wrong = OpenBlock(dataclasses.replace(of, output_ids=[1, 5]), 2, ahead_of=of, certain=of.position)
    draw(drafter, OpenBlock(of, 1))
    draw(drafter, wrong)
    of.output_ids += [1]
    assert draw(drafter, OpenBlock(of, 3)) == draw(hybrid(), OpenBlock(dataclasses.replace(of), 3))


def test_greedy_proposals_copy_where_a_match_is_long() -> None:
    drafter = hybrid()
    text = [3, 9, 4, 12, 7, 1, 14, 3, 9, 4, 12]
    block = OpenBlock(sequence(text, temperature=0.0), 3)
    draw(drafter, block)
    assert [p.token_id for p in block.proposals] == [7, 1, 14]
    assert all(isinstance(p.q, OneHot) for p in block.proposals)


def test_a_released_sequence_leaves_nothing_behind() -> None:
    drafter = hybrid()
    of = sequence([1, 2, 1])
    draw(drafter, OpenBlock(of, 2))
    drafter.release(of)
    assert drafter._recall is not None
    assert not drafter._recall._indexes


def test_the_guess_about_the_next_token_leans_as_well() -> None:
    drafter = hybrid()
    of = sequence([3, 9, 4, 12, 7, 3, 9, 4, 12], temperature=0.0)
    block = OpenBlock(
        dataclasses.replace(of), 1, ahead_of=of, certain=of.position, guess=Draw(KEY, of.position, 0, Purpose.NEXT)
    )
    draw(drafter, OpenBlock(of, 1))
    drafter.step([block])
    assert block.sequence.output_ids == [7]
