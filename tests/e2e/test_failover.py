"""Kill -9 under load: the bench's own rounds, which fail where a stream is not what it should be."""

from __future__ import annotations

import pytest

from bench import failover
from bench.streams import KINDS

ROUNDS = 3
STREAMS = 32
TOKENS = 150


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_streams_survive_a_draft_a_target_and_all_of_a_kind() -> None:
    found = await failover.run(ROUNDS, STREAMS, TOKENS, seed=3, say=False)
    assert found.streams == ROUNDS * STREAMS
    assert found.tokens == ROUNDS * STREAMS * TOKENS
    assert found.compared == ROUNDS * sum(KINDS[i % 3] != "unseeded" for i in range(STREAMS))
    assert found.fallbacks["draft_lost"]
    assert found.fallbacks["target_lost"]
    for name in ("one draft", "one target"):
        assert max(found.recoveries[name]) < 30.0, "nobody waits for what died while another of its kind is there"
