"""Kill -9 under load: the bench's own rounds, which fail where a stream is not what it should be."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from bench import failover
from bench.streams import KINDS, Stream

ROUNDS = 3
STREAMS = 32
TOKENS = 96


@pytest.mark.timeout(600)
async def test_streams_survive_a_draft_a_target_and_all_of_a_kind() -> None:
    found = failover.Findings()
    await failover.run(found, ROUNDS, STREAMS, TOKENS, seed=3, say=False)
    assert found.streams == ROUNDS * STREAMS
    assert found.tokens == ROUNDS * STREAMS * TOKENS
    assert found.compared == ROUNDS * sum(KINDS[i % 3] != "unseeded" for i in range(STREAMS))
    assert found.fallbacks["draft_lost"]
    assert found.fallbacks["target_lost"]
    for name in ("one draft", "one target"):
        seconds = found.recoveries[name]
        assert seconds, f"no stream noticed that {name} died: {found}"
        assert max(seconds) < 30.0, "nobody waits for what died while another of its kind is there"


def test_an_interruption_belongs_to_the_worker_that_was_missed() -> None:
    found = failover.Findings()
    kills = [(10.0, "one draft"), (10.5, "one target"), (20.0, "all targets")]

    def stream(before: float, after: float, reason: str) -> Stream:
        notes = (f"went on after 5 tokens ({reason}): gone",)
        return Stream(SimpleNamespace(notes=notes), [(before, 5), (after, 9)])  # type: ignore[arg-type]

    streams = [
        stream(9.9, 10.2, "draft_lost"),
        stream(10.4, 12.4, "target_lost"),
        stream(10.51, 13.51, "target_slow"),
        stream(20.1, 24.1, "overloaded"),
        stream(15.0, 16.0, "draft_slow"),
    ]
    failover._attribute(streams, kills, found)
    assert {name: [round(one, 6) for one in seconds] for name, seconds in found.recoveries.items()} == {
        "one draft": [0.3],
        "one target": [2.0, 3.0],
        "all drafts": [],
        "all targets": [4.0],
    }
    assert found.other == {"draft_slow": 1}
    assert not found.idle
