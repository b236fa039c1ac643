"""The audit in a running target: what feeds it, whom it catches, and what happens to them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from draft_service.app import DraftApp
from draft_service.drafters import model
from draftproof.errors import QuarantinedError
from draftproof.sampling.draft_q import Dense, DraftQ, support
from draftproof.v1 import verdict_pb2
from draftproof.verification import drafts
from tests.integration.services.harness import Kit, Stack, model_drafter, proposals, random_q, raw_draft, table
from tests.integration.services.test_trees import growing

OPTIONS: dict[str, Any] = {"max_tokens": 200, "ignore_eos": True, "gamma": 4}
SEEN = 50_000


def drafter_of(stack: Stack) -> str:
    assert isinstance(stack.draft.app, DraftApp)
    return f"{stack.draft.app._drafter.name}@127.0.0.1"


async def write(stack: Stack, tokens: int, **options: Any) -> int:
    """Writes unseeded texts until the draft is refused or so many tokens are there; how many it were."""
    written = 0
    try:
        while written < tokens:
            written += len((await stack.client.generate("hello", **OPTIONS, **options)).token_ids)
    except QuarantinedError:
        pass
    return written


async def lying(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> Stack:
    """A stack whose draft sends float q, which no exact check covers, and draws at temperature 0.5 of it."""

    def drawn(q: DraftQ, word: int) -> int:
        ids, masses = support(q)
        totals = np.cumsum(masses ** (1 / 0.5))
        return int(ids[np.searchsorted(totals, (word >> 11) * 2.0**-53 * totals[-1], side="right")])

    monkeypatch.setattr(model, "draw", drawn)
    return await kit.stack(drafter=lambda: model_drafter(table(noise=0.3), "dense"))


@pytest.mark.parametrize("rule", ["token", "block"])
async def test_a_draft_that_lies_is_quarantined(kit: Kit, monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    stack = await lying(kit, monkeypatch)
    drafter = drafter_of(stack)
    written = await write(stack, SEEN, rule=rule)
    assert written < SEEN
    assert stack.target.count("audit_alarms_total", test="proposals", drafter=drafter) == 1
    assert stack.target.count("audit_quarantines_total", drafter=drafter) == 1
    with pytest.raises(QuarantinedError):
        await stack.client.generate("hello", **OPTIONS)
    alone = await stack.direct.generate("hello", **OPTIONS)
    assert len(alone.token_ids) == OPTIONS["max_tokens"]
    assert stack.target.count("audit_quarantines_total", drafter="none") == 0


async def test_an_honest_draft_is_left_alone_and_seeded_texts_are_no_evidence(kit: Kit) -> None:
    stack = await kit.stack(drafter=lambda: model_drafter(table(noise=0.3), "dense"))
    drafter = drafter_of(stack)
    written = await write(stack, 800)
    assert stack.target.count("audited_tokens_total", drafter=drafter) == written
    for check in ("proposals", "acceptance", "output", "excess"):
        assert stack.target.count("audit_alarms_total", test=check, drafter=drafter) == 0
    wealth = stack.target.count("audit_log_wealth", test="output", drafter=drafter)
    await stack.client.generate("hello", seed=1, **OPTIONS)
    assert stack.target.count("audited_tokens_total", drafter=drafter) == written
    assert stack.target.count("unaudited_tokens_total", drafter=drafter) == OPTIONS["max_tokens"]
    assert stack.target.count("audit_log_wealth", test="output", drafter=drafter) == wealth != 0


async def test_trees_tell_of_acceptance_and_output(kit: Kit) -> None:
    """Every draw of a tree is repeated, so there is nothing to bet on in the proposals."""
    stack = await kit.stack(drafter=lambda: growing(3, 2, 1))
    drafter = drafter_of(stack)
    written = await write(stack, 400, rule="tree")
    assert stack.target.count("audited_tokens_total", drafter=drafter) == written
    wealth = {
        check: stack.target.count("audit_log_wealth", test=check, drafter=drafter)
        for check in ("proposals", "acceptance", "output", "excess")
    }
    assert wealth["proposals"] == wealth["excess"] == 0
    assert 0 != wealth["acceptance"] < 10
    assert 0 != wealth["output"] < 10


@pytest.mark.slow
async def test_a_target_that_draws_from_p_after_a_rejection_raises_an_alarm(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafts, "residual", lambda p, q: p.double().clone())
    stack = await kit.stack(drafter=lambda: model_drafter(table(noise=1.0)))
    assert await write(stack, SEEN) < SEEN
    assert stack.target.count("audit_alarms_total", test="excess", drafter=drafter_of(stack)) == 1


async def test_sessions_that_run_go_on_by_the_target_alone(kit: Kit) -> None:
    """Proposals are stripped, in a session that was open before."""
    stack = await kit.stack()
    node = stack.target
    async with raw_draft(node.address) as draft:
        await draft.open(seed=None)
        audit = node.app._verifier._audit
        audit._caught.add(audit.name("raw@127.0.0.1"))
        q = Dense(random_q(1)[0].numpy())
        verdict = (await draft.round(1, 3, proposals(bytes(32), 3, [q, q]))).verdict
        assert (verdict.refusal.kind, verdict.examined) == (verdict_pb2.REFUSAL_KIND_QUARANTINED, 0)
        assert [token.source for token in verdict.tokens] == [verdict_pb2.TOKEN_SOURCE_TARGET]
        assert verdict.lossless
        assert node.count("refused_proposals_total", kind="quarantined") == 1
        await draft.send(2, 1, open={"prompt_ids": [1]})
        assert (await draft.receive()).error.reason


@pytest.mark.parametrize(
    ("seed", "key", "audited"),
    [(None, b"", True), (7, b"", False), (None, bytes(32), False)],
    ids=["fresh", "seeded", "resumed"],
)
async def test_sessions_feed_it_whose_key_the_target_made(
    kit: Kit, seed: int | None, key: bytes, audited: bool
) -> None:
    stack = await kit.stack()
    async with raw_draft(stack.target.address) as draft:
        made = (await draft.open(seed=seed, key=key)).request_key
        q = Dense(random_q(1)[0].numpy())
        verdict = (await draft.round(1, 3, proposals(made, 3, [q, q]))).verdict
        names = ("audited_tokens_total", "unaudited_tokens_total")
        counts = [stack.target.count(name, drafter="raw@127.0.0.1") for name in names]
        assert counts == [len(verdict.tokens) * audited, len(verdict.tokens) * (not audited)]
