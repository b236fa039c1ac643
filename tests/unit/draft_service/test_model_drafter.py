"""The draft model: its cache after every verdict, its q, its draws, and who keeps a slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from draft_service.drafters.interface import OpenBlock
from draft_service.drafters.model import ModelDrafter, encoder
from draftproof.engine.interface import Row
from draftproof.errors import ConfigError
from draftproof.sampling.draft_q import Dense, Lattice, OneHot, Sparse, draw, quantise
from draftproof.sampling.params import SamplingParams
from draftproof.sampling.pipeline import History, distribution
from draftproof.sampling.rng import Draw, Purpose, random_words
from draftproof.serving.drafting import DraftSequence
from draftproof.testing.table import TableEngine

VOCAB = 16
KEY = bytes(range(32))


class Recording(TableEngine):
    """Keeps the rows of every pass."""

    def __init__(self, **options: Any) -> None:
        super().__init__(VOCAB, **options)
        self.rows: list[list[Row]] = []

    def forward(self, rows: Sequence[Row]) -> Tensor:
        self.rows.append(list(rows))
        return super().forward(rows)


def sequence(prompt: Sequence[int] = (1, 2, 3), **params: Any) -> DraftSequence:
    return DraftSequence(list(prompt), SamplingParams(**params), KEY)


def draft(drafter: ModelDrafter, of: DraftSequence, gamma: int) -> OpenBlock:
    block = OpenBlock(of, gamma)
    while not block.done:
        drafter.step([block])
    return block


def lattice(engine: TableEngine, **options: Any) -> ModelDrafter:
    return ModelDrafter(engine, encoder("lattice", 128, 12), **options)


@pytest.mark.parametrize("accepted", range(5))
def test_the_cache_equals_a_cold_start_after_every_verdict(accepted: int) -> None:
    engine = Recording(order=3)
    drafter = lattice(engine)
    of = sequence()
    for round_number in range(3):
        block = draft(drafter, of, 4)
        tokens = [p.token_id for p in block.proposals]
        committed = [*tokens[:accepted], (tokens[accepted] + 1) % VOCAB if accepted < 4 else 7]
        of.output_ids += committed
        again = draft(drafter, of, 4)
        cold = draft(lattice(Recording(order=3)), of, 4)
        assert [p.token_id for p in again.proposals] == [p.token_id for p in cold.proposals]
        for warm_p, cold_p in zip(again.proposals, cold.proposals, strict=True):
            assert isinstance(warm_p.q, Lattice)
            assert isinstance(cold_p.q, Lattice)
            assert (warm_p.q.counts == cold_p.q.counts).all()
        slot = drafter._cached[of].slot
        held = [*of.prompt_ids, *of.output_ids, *(p.token_id for p in again.proposals[:-1])]
        assert list(engine.cached(slot)) == held, round_number
        assert drafter._cached[of].tokens == held


def test_a_proposal_replaced_in_the_middle_is_no_longer_believed() -> None:
    """The target commits its own draw in place of one that differs, and a token after it."""
    engine = Recording(order=3)
    drafter = lattice(engine)
    of = sequence()
    block = draft(drafter, of, 4)
    of.output_ids += [(block.proposals[0].token_id + 1) % VOCAB, 7]
    again = draft(drafter, of, 4)
    cold = draft(lattice(Recording(order=3)), of, 4)
    assert [p.token_id for p in again.proposals] == [p.token_id for p in cold.proposals]
    assert list(engine.cached(drafter._cached[of].slot))[:5] == [*of.prompt_ids, *of.output_ids]


def test_only_what_is_new_is_fed_and_the_bonus_token_with_the_last_proposal() -> None:
    engine = Recording()
    drafter = lattice(engine)
    of = sequence()
    block = draft(drafter, of, 3)
    of.output_ids += [*(p.token_id for p in block.proposals), 9]
    engine.rows.clear()
    draft(drafter, of, 1)
    ((row,),) = engine.rows
    assert (row.start, list(row.token_ids)) == (5, [block.proposals[-1].token_id, 9])


def test_q_is_the_pipeline_s_and_the_draw_is_the_key_s() -> None:
    engine = TableEngine(VOCAB)
    params = {"temperature": 0.8, "top_k": 6, "frequency_penalty": 0.7}
    of = sequence(**params)
    of.output_ids += [4, 4, 5]
    block = draft(lattice(engine), of, 4)
    drawn: list[int] = []
    for offset, proposal in enumerate(block.proposals):
        history = History(of.prompt_ids, [*of.output_ids, *drawn])
        logits = engine.logits_after([[*of.prompt_ids, *of.output_ids, *drawn]])[0]
        (expected,) = quantise(distribution(logits, of.params, history)[None], 128, 12)
        assert isinstance(proposal.q, Lattice)
        assert (proposal.q.ids == expected.ids).all()
        assert (proposal.q.counts == expected.counts).all()
        word = int(random_words([Draw(KEY, 6, offset, Purpose.DRAFT)])[0])
        assert proposal.token_id == draw(expected, word)
        drawn.append(proposal.token_id)


@pytest.mark.parametrize(("encoding", "kind"), [("lattice", Lattice), ("sparse", Sparse), ("dense", Dense)])
def test_encodings(encoding: str, kind: type) -> None:
    block = draft(ModelDrafter(TableEngine(VOCAB), encoder(encoding, 128, 12)), sequence(top_k=5), 3)
    assert all(isinstance(p.q, kind) for p in block.proposals)
    greedy = draft(ModelDrafter(TableEngine(VOCAB), encoder("lattice", 128, 12)), sequence(temperature=0.0), 3)
    assert all(p.q == OneHot(p.token_id) for p in greedy.proposals)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [(("other", 1, 12), "q_encoding"), (("lattice", 0, 12), "entries"), (("lattice", 1, 25), "bits")],
)
def test_wrong_encodings(arguments: tuple[str, int, int], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        encoder(*arguments)


def test_batched_or_alone() -> None:
    alone = [draft(lattice(TableEngine(VOCAB)), sequence([i, 5], temperature=1 + i / 4), 3) for i in range(4)]
    drafter = lattice(TableEngine(VOCAB))
    blocks = [OpenBlock(sequence([i, 5], temperature=1 + i / 4), 3) for i in range(4)]
    for _ in range(3):
        drafter.step(blocks)
    assert [[p.token_id for p in b.proposals] for b in blocks] == [[p.token_id for p in b.proposals] for b in alone]


def test_long_prompts_come_in_chunks() -> None:
    engine = Recording()
    block = OpenBlock(sequence([1] * 10), 1)
    drafter = lattice(engine, prefill_chunk=4)
    for proposals in (0, 0, 1):
        drafter.step([block])
        assert len(block.proposals) == proposals
    assert [len(row.token_ids) for (row,) in engine.rows] == [4, 4, 2]


def test_the_least_recently_used_loses_its_slot() -> None:
    engine = Recording(slots=2)
    drafter = lattice(engine)
    a, b, c = sequence([1]), sequence([2]), sequence([3])
    for of in (a, b, a, c):
        draft(drafter, of, 1)
    assert list(drafter._cached) == [a, c]
    assert len({cached.slot for cached in drafter._cached.values()}) == 2
    engine.rows.clear()
    again = draft(drafter, b, 2)
    assert engine.rows[0][0].start == 0
    assert [p.token_id for p in again.proposals] == [
        p.token_id for p in draft(lattice(TableEngine(VOCAB)), b, 2).proposals
    ]
    drafter.release(b)
    drafter.release(b)
    drafter.release(c)
    assert sorted(drafter._free) == [0, 1]


def test_a_full_context_ends_the_block() -> None:
    block = draft(lattice(TableEngine(VOCAB, max_context=6)), sequence([1, 2, 3]), 9)
    assert len(block.proposals) == 4, "after 3, 4, 5 and 6 tokens"
    assert block.ended


class NanEngine(TableEngine):
    def logits_after(self, contexts: Sequence[Sequence[int]]) -> Tensor:
        logits = super().logits_after(contexts)
        for row, context in enumerate(contexts):
            if context[-1] == 9:
                logits[row] = torch.nan
        return logits


def test_nan_ends_its_block_alone() -> None:
    bad, good = OpenBlock(sequence([9]), 2), OpenBlock(sequence([1]), 2)
    lattice(NanEngine(VOCAB)).step([bad, good])
    assert (bad.ended, bad.proposals) == (True, [])
    assert [p.token_id for p in good.proposals] == [
        p.token_id for p in draft(lattice(TableEngine(VOCAB)), sequence([1]), 1).proposals
    ]


class Breaking(TableEngine):
    broken = False

    def forward(self, rows: Sequence[Row]) -> Tensor:
        if self.broken:
            raise RuntimeError("a bug")
        return super().forward(rows)


def test_a_broken_pass_leaves_no_claim_about_its_slots() -> None:
    engine = Breaking(VOCAB)
    drafter = lattice(engine)
    of, other = sequence(), sequence([5])
    draft(drafter, of, 2)
    engine.broken = True
    with pytest.raises(RuntimeError):
        drafter.step([OpenBlock(of, 2), OpenBlock(other, 2)])
    engine.broken = False
    assert not drafter._cached
    assert sorted(drafter._free) == list(range(8))
    assert [p.token_id for p in draft(drafter, of, 2).proposals] == [
        p.token_id for p in draft(lattice(TableEngine(VOCAB)), of, 2).proposals
    ]
