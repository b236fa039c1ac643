"""Rules through both services: chosen per request, named in the answer, refused where they may not be had."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from draftproof import Rule
from draftproof.errors import InvalidArgumentError, UnsupportedError
from draftproof.v1 import sampling_pb2, target_pb2, verdict_pb2
from target_service.verifier import VerifierConfig
from tests.integration.services.harness import Kit, Options, model_drafter, raw_draft, table

LOSSLESS = [Rule.TOKEN, Rule.BLOCK, Rule.COUPLED, Rule.TREE]
OPTIONS: dict[str, Any] = {"max_tokens": 60, "ignore_eos": True, "gamma": 4}


async def test_every_lossless_rule_speaks_and_is_counted_under_its_name(kit: Kit) -> None:
    stack = await kit.stack()
    for rule in LOSSLESS:
        done = await stack.client.generate("hello", rule=rule, seed=1, **OPTIONS)
        assert (done.rule, done.lossless, done.loss) == (rule, True, 0.0)
        assert 0 < done.stats.accepted < done.stats.drafted
        assert stack.target.count("spec_decode_num_accepted_tokens_total", rule=rule) == done.stats.accepted
        expected = stack.target.count("spec_decode_expected_accepted_tokens_total", rule=rule)
        assert expected == pytest.approx(done.stats.expected_accepted)


async def test_the_default_is_block_and_a_rule_may_be_named(kit: Kit) -> None:
    stack = await kit.stack()
    default = await stack.client.generate("hello", seed=3, **OPTIONS)
    named = await stack.client.generate("hello", seed=3, rule="block", **OPTIONS)
    assert (default.rule, default.token_ids) == (Rule.BLOCK, named.token_ids)
    with pytest.raises(InvalidArgumentError, match="rule must be one of token, block"):
        await stack.client.generate("hello", rule="loose", **OPTIONS)


async def test_a_coupled_text_is_the_targets_own_whatever_drafts_and_how_far(kit: Kit) -> None:
    """Another gamma, another draft, a draft that was restarted, or none: the seed alone decides."""
    stack = await kit.stack()
    options = {**OPTIONS, "rule": "coupled", "seed": 7}
    alone = await stack.direct.generate("hello", **options)
    found = [await stack.client.generate("hello", **{**options, "gamma": gamma}) for gamma in (0, 1, 2, 8)]
    found.append(await stack.client.generate("hello", **{**options, "gamma": None}))
    await stack.restart_draft()
    found.append(await stack.client.generate("hello", **options))
    other = await kit.stack(drafter=lambda: model_drafter(table(noise=0.6, noise_seed=9)))
    found.append(await other.client.generate("hello", **options))
    assert {done.token_ids for done in found} == {alone.token_ids}
    assert 0 < found[-1].stats.accepted < found[3].stats.accepted


async def test_coupled_proposals_carry_no_q(kit: Kit) -> None:
    stack = await kit.stack()
    done = await stack.client.generate("hello", rule="coupled", trace=3, **OPTIONS)
    assert stack.target.count("proposals_total", encoding="none") == done.stats.drafted
    assert all(token.trace is not None and token.trace.q is None for token in done.tokens)


@pytest.mark.parametrize("rule", ["lenient", "typical"])
async def test_a_lossy_rule_is_refused_unless_the_target_allows_it(kit: Kit, rule: str) -> None:
    stack = await kit.stack()
    for client in (stack.client, stack.direct):
        with pytest.raises(UnsupportedError, match="allow-lossy") as caught:
            await client.generate("hello", rule=rule, lenience=0.3, **OPTIONS)
        assert caught.value.metadata["field"] == "rule"
    assert stack.target.count("lossy_tokens_total") == 0


@pytest.mark.parametrize("rule", ["lenient", "typical"])
async def test_an_allowed_lossy_rule_says_what_it_loses(kit: Kit, rule: str) -> None:
    stack = await kit.stack(verifier=VerifierConfig(allow_lossy=True))
    done = await stack.client.generate("hello", rule=rule, lenience=0.3, seed=1, **OPTIONS)
    assert (done.rule, done.lossless) == (rule, False)
    assert 0 < done.loss <= len(done.tokens)
    assert all(0 <= token.loss <= 1 for token in done.tokens)
    assert stack.target.count("lossy_tokens_total", rule=rule) == len(done.tokens)
    assert stack.target.count("lossy_variation_total", rule=rule) == pytest.approx(done.loss)
    assert stack.target.count("not_lossless_rounds_total") == 0
    # nothing of it rubs off on others
    exact = await stack.client.generate("hello", seed=1, **OPTIONS)
    assert (exact.lossless, exact.loss) == (True, 0.0)


async def test_rules_share_a_batch_without_touching_each_other(kit: Kit) -> None:
    stack = await kit.stack(verifier=VerifierConfig(allow_lossy=True))
    wishes: list[dict[str, Any]] = [{"rule": rule, "seed": seed} for rule in LOSSLESS for seed in (1, 2)]
    wishes += [{"rule": "lenient", "lenience": 0.5, "seed": 1}, {"rule": "typical", "lenience": 0.2, "seed": 1}]
    alone = [(await stack.client.generate("hello", **wish, **OPTIONS)).token_ids for wish in wishes]
    found = await asyncio.gather(*(stack.client.generate("hello", **wish, **OPTIONS) for wish in wishes))
    assert [done.token_ids for done in found] == alone
    assert len(set(alone)) == len(alone)


async def test_a_coupled_proposal_outside_the_vocabulary_ends_the_block_before_it(kit: Kit) -> None:
    target = await kit.target(Options())
    async with raw_draft(target.address) as peer:
        await peer.open(rule=sampling_pb2.RULE_COUPLED)
        verdict = (await peer.round(1, 3, [target_pb2.Proposal(token_id=10_000)])).verdict
    assert (verdict.examined, verdict.lossless, len(verdict.tokens)) == (0, True, 1)
    assert verdict.refusal.kind == verdict_pb2.REFUSAL_KIND_MALFORMED_Q
