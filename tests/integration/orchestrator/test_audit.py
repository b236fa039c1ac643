"""A draft that the audit of a target catches, in a cluster that has another."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from torch import Tensor

from draft_service.drafters.interface import OpenBlock
from draft_service.drafters.model import ModelDrafter
from draftproof.sampling.draft_q import support
from draftproof.testing.table import TableEngine
from tests.integration.orchestrator.conftest import Build
from tests.integration.services.harness import model_drafter, table


class Liar(ModelDrafter):
    """Sends float q, which no exact check covers, and always proposes its likeliest token."""

    def __init__(self, engine: TableEngine) -> None:
        honest = model_drafter(engine, "dense")
        super().__init__(engine, honest._encode)

    def _sample(self, blocks: Sequence[OpenBlock], q: Tensor, logits: Tensor) -> None:
        super()._sample(blocks, q, logits)
        for block in blocks:
            sent = block.proposals[-1]
            assert sent.q is not None
            ids, masses = support(sent.q)
            block.proposals[-1] = replace(sent, token_id=int(ids[masses.argmax()]))


async def test_once_caught_it_is_left_for_the_other(cluster: Build) -> None:
    liar, honest = Liar(table(noise=0.3, slots=32)), model_drafter(table(noise=0.4, slots=32), "dense")
    drafters = iter([liar, honest])
    # every round drafts: control may find that models this fast do better without
    built = await cluster(drafts=2, drafter=lambda: next(drafters), adaptive=False)
    client = built.client()

    async def serve(count: int) -> set[str]:
        asked = [client.generate("hello", max_tokens=100, ignore_eos=True, gamma=4) for _ in range(count)]
        done = await asyncio.gather(*asked)
        assert all(len(each.token_ids) == 100 for each in done)
        return {each.drafter for each in done}

    # about two rounds of a pass are examined
    for _ in range(8):
        assert await serve(16) == {liar.name, honest.name}, "those that run when it is caught go on as well"
        if built.targets[0].count("audit_quarantines_total", drafter=f"{liar.name}@127.0.0.1"):
            break
    else:
        pytest.fail("the draft that lies was not caught")
    assert built.targets[0].count("audit_quarantines_total", drafter=f"{honest.name}@127.0.0.1") == 0
    assert built.targets[0].count("refused_proposals_total", kind="quarantined") > 0
    assert await serve(16) == {honest.name}
    stats = await built.stats()
    assert stats.fallbacks["quarantined"] > 0
    assert not stats.failed
    await built.idle()
