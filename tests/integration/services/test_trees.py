"""Trees through both services: drafted level by level, verified in one pass, refused where they don't fit."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from draft_service.drafters.model import ModelDrafter, encoder
from draft_service.drafters.ngram import NgramDrafter
from draft_service.drafters.trees import TreeShape
from draftproof.errors import UnsupportedError
from draftproof.sampling.draft_q import quantise
from draftproof.v1 import error_pb2, sampling_pb2, target_pb2
from draftproof.wire.distribution import encode
from target_service.verifier import VerifierConfig
from tests.integration.services.harness import Kit, Options, Stack, random_q, raw_draft, table

OPTIONS: dict[str, Any] = {"max_tokens": 60, "ignore_eos": True, "gamma": 4, "rule": "tree"}


def growing(*widths: int, encoding: str = "lattice", noise: float = 0.3, **options: Any) -> ModelDrafter:
    engine = table(noise=noise, **options)
    return ModelDrafter(engine, encoder(encoding, 128, 12), shape=TreeShape(widths, 128, 12))


async def served(kit: Kit, *widths: int, **options: Any) -> Stack:
    return await kit.stack(drafter=lambda: growing(*widths, **options))


async def test_counts_keep_their_meaning(kit: Kit) -> None:
    stack = await served(kit, 3, 2, 1)
    done = await stack.client.generate("hello", seed=1, trace=3, logprobs=1, **OPTIONS)
    stats = done.stats
    assert len(done.token_ids) == 60
    assert done.lossless
    assert (stats.refused, stats.target_only) == (0, 0)
    assert stats.rounds == stats.resampled + stats.bonus
    assert stats.accepted == 60 - stats.rounds
    assert stats.drafted == sum(stats.drafted_per_position)
    assert stats.accepted == sum(stats.accepted_per_position)
    # the last rounds had room for less
    assert 12 * (stats.rounds - 4) < stats.drafted <= 15 * stats.rounds
    assert stats.drafted_per_position[0] == 3 * stats.rounds
    assert 0 < stats.accepted_per_position[2] < stats.accepted_per_position[0] <= stats.rounds
    target = stack.target
    assert target.count("spec_decode_num_draft_tokens_total", rule="tree") == stats.drafted
    assert target.count("spec_decode_num_accepted_tokens_total", rule="tree") == stats.accepted
    assert target.count("spec_decode_num_tested_tokens_per_pos_total", position="0") == stats.rounds
    for name, counts in (("draft", stats.drafted_per_position), ("accepted", stats.accepted_per_position)):
        for position, count in enumerate(counts):
            assert target.count(f"spec_decode_num_{name}_tokens_per_pos_total", position=str(position)) == count
    assert target.count("spec_decode_expected_accepted_tokens_total") == pytest.approx(stats.expected_accepted)
    assert stats.expected_accepted == pytest.approx(stats.accepted, rel=0.25)


async def test_a_trace_says_what_was_tried_last(kit: Kit) -> None:
    stack = await served(kit, 3, 2)
    done = await stack.client.generate("hello", seed=2, trace="full", logprobs=0, **OPTIONS)
    for position, token in enumerate(done.tokens, 5):
        trace = token.trace
        assert trace is not None
        assert trace.position == position
        assert trace.accepted == (token.source == "accepted")
        if trace.accept_uniform is not None and trace.accept_probability is not None:
            assert (trace.accept_uniform < trace.accept_probability) == trace.accepted
        if trace.accepted:
            assert trace.proposed_id == token.id
    again = await stack.client.generate("hello", seed=2, **OPTIONS)
    assert again.token_ids == done.token_ids


async def test_seeded_trees_give_the_same_text_alone_and_in_company(kit: Kit) -> None:
    stack = await served(kit, 3, 2, 1)
    wishes: list[dict[str, Any]] = [{"seed": seed, "temperature": t} for seed in (1, 2, 3) for t in (0.6, 1.0)]
    wishes += [{"seed": 1, "presence_penalty": 1.0}, {"temperature": 0.0}, {"seed": 4, "top_k": 5}]
    alone = [(await stack.client.generate("hello", **OPTIONS, **wish)).token_ids for wish in wishes]
    others = [{**OPTIONS, "rule": rule, "seed": 9} for rule in ("block", "token", "coupled")]
    found = await asyncio.gather(
        *(stack.client.generate("hello", **OPTIONS, **wish) for wish in wishes),
        *(stack.client.generate("hello", **other) for other in others),
    )
    assert [done.token_ids for done in found[: len(wishes)]] == alone
    assert len(set(alone)) == len(alone)


async def test_a_greedy_tree_gives_the_greedy_text_in_fewer_rounds(kit: Kit) -> None:
    stack = await served(kit, 4, 3, 1)
    greedy = {**OPTIONS, "temperature": 0.0, "gamma": 3}
    alone = await stack.direct.generate("hello", **greedy)
    chain = await stack.client.generate("hello", **{**greedy, "rule": "block"})
    tree = await stack.client.generate("hello", **greedy)
    assert tree.token_ids == chain.token_ids == alone.token_ids
    assert tree.stats.rounds < chain.stats.rounds


async def test_gamma_and_the_end_of_the_output_cap_the_depth(kit: Kit) -> None:
    stack = await served(kit, 2, 2, 1)
    for gamma, most in ((1, 1), (2, 2), (None, 3)):
        done = await stack.client.generate("hello", seed=1, **{**OPTIONS, "gamma": gamma})
        assert len(done.stats.drafted_per_position) == most
    short = await stack.client.generate("hello", seed=1, **{**OPTIONS, "max_tokens": 2})
    assert short.stats.drafted_per_position == (2,) * len(short.stats.drafted_per_position)


async def test_a_tree_fits_what_the_target_takes_and_the_context_holds(kit: Kit) -> None:
    stack = await kit.stack(
        drafter=lambda: growing(4, 4, 4), engine=table(max_context=40), verifier=VerifierConfig(max_gamma=7)
    )
    done = await stack.client.generate("hello", seed=1, **{**OPTIONS, "max_tokens": None})
    assert len(done.token_ids) == 35
    assert 4 < done.stats.drafted / done.stats.rounds <= 7


@pytest.mark.parametrize("encoding", ["sparse", "dense"])
async def test_trees_are_sent_as_lattices_whatever_chains_are_sent_as(kit: Kit, encoding: str) -> None:
    stack = await served(kit, 2, 1, encoding=encoding)
    done = await stack.client.generate("hello", seed=1, **OPTIONS)
    assert done.stats.refused == 0
    assert done.stats.accepted > 0


async def test_prompt_lookup_proposes_chains_under_the_tree_rule(kit: Kit) -> None:
    stack = await kit.stack(drafter=NgramDrafter, engine=table(spread=6.0))
    done = await stack.client.generate("abcabcabcabc", **{**OPTIONS, "temperature": 0.0, "max_tokens": 80})
    alone = await stack.direct.generate("abcabcabcabc", **{**OPTIONS, "temperature": 0.0, "max_tokens": 80})
    assert done.token_ids == alone.token_ids
    assert done.stats.accepted > 0


async def test_engines_without_trees(kit: Kit) -> None:
    """A draft's proposes chains; a target's refuses the rule."""
    for side in ("draft", "target"):
        drafter, engine = growing(3, 2, 1), table()
        (drafter._engine if side == "draft" else engine).trees = False
        stack = await kit.stack(drafter=lambda drafter=drafter: drafter, engine=engine)
        if side == "draft":
            done = await stack.client.generate("hello", seed=1, **OPTIONS)
            assert done.stats.drafted <= 3 * done.stats.rounds
            assert done.stats.refused == 0
            assert done.stats.accepted > 0
        else:
            with pytest.raises(UnsupportedError, match="chains alone") as caught:
                await stack.client.generate("hello", **OPTIONS)
            assert caught.value.metadata["field"] == "rule"


Q = encode(quantise(random_q(1), 128, 12))[0]


def node(parent: int | None) -> target_pb2.Proposal:
    return target_pb2.Proposal(token_id=1, q=Q, parent=parent)


@pytest.mark.parametrize(
    ("rule", "parents", "words"),
    [
        ("TREE", [0, 2], r"block.proposals[1].parent must be at most 1, got 2"),
        ("TREE", [0] * 17, r"block.proposals must be at most 16 long here, got 17"),
        ("TREE", [None] * 8, r"block.proposals must be at most 7 deep here, got 8"),
        ("BLOCK", [None, 1], r"block.proposals[1].parent must be unset under the block rule, got 1"),
    ],
)
async def test_trees_that_dont_fit_are_refused(kit: Kit, rule: str, parents: list[int | None], words: str) -> None:
    target = await kit.target(Options())
    async with raw_draft(target.address) as peer:
        await peer.open(rule=sampling_pb2.Rule.Value(f"RULE_{rule}"), max_tokens=8)
        answer = await peer.round(1, 3, [node(parent) for parent in parents])
        assert words in answer.error.message
        assert answer.error.reason == error_pb2.ERROR_REASON_INVALID_ARGUMENT


async def test_a_tree_that_the_context_cant_hold_is_refused(kit: Kit) -> None:
    target = await kit.target(Options(engine=table(max_context=12)))
    async with raw_draft(target.address) as peer:
        await peer.open(rule=sampling_pb2.RULE_TREE)
        answer = await peer.round(1, 3, [node(0)] * 10)
        assert "at most 9 long here, got 10" in answer.error.message


async def test_a_forged_node_is_replaced_by_the_targets_own_draw(kit: Kit) -> None:
    target = await kit.target(Options())
    async with raw_draft(target.address) as peer:
        await peer.open(rule=sampling_pb2.RULE_TREE)
        verdict = (await peer.round(1, 3, [node(0), node(0), node(1)])).verdict
        assert verdict.examined == 1 or verdict.refusal.offset > 0
        assert target.count("refused_proposals_total", kind="draw_mismatch") == 1
        assert verdict.lossless
