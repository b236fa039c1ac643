"""Adding up rounds."""

from __future__ import annotations

import random

from draftproof.serving.statistics import StatsBuilder
from draftproof.v1 import verdict_pb2 as pb

SOURCES = [
    pb.TOKEN_SOURCE_ACCEPTED,
    pb.TOKEN_SOURCE_RESAMPLED,
    pb.TOKEN_SOURCE_BONUS,
    pb.TOKEN_SOURCE_TARGET,
]


def verdict(accepted: int, examined: int, last: pb.TokenSource | None, **fields: object) -> pb.Verdict:
    tokens = [pb.Token(source=pb.TOKEN_SOURCE_ACCEPTED) for _ in range(accepted)]
    tokens += [] if last is None else [pb.Token(source=last)]
    settings = {"lossless": True, "expected_accepted": 0.25} | fields
    return pb.Verdict(accepted=accepted, examined=examined, tokens=tokens, **settings)  # type: ignore[arg-type]


def add(builder: StatsBuilder, of: pb.Verdict, now_ns: int = 1000) -> None:
    builder.add(of, draft_ns=3, round_trip_ns=100, proposal_bytes=7, now_ns=now_ns)


def test_sums() -> None:
    builder = StatsBuilder(started_ns=400)
    timings = pb.TargetTimings(queue_ns=10, forward_ns=20, verify_ns=30)
    add(builder, verdict(2, 4, SOURCES[1], timings=timings))
    add(builder, verdict(3, 3, SOURCES[2], timings=timings), 1500)
    add(builder, verdict(0, 0, SOURCES[3], timings=timings), 2000)
    add(builder, verdict(1, 1, None, timings=timings, refusal=pb.Refusal(offset=1)), 2500)
    stats = builder.stats
    assert (stats.rounds, stats.drafted, stats.accepted) == (4, 8, 6)
    assert (stats.resampled, stats.bonus, stats.target_only, stats.refused) == (1, 1, 1, 1)
    assert list(stats.drafted_per_position) == [3, 2, 2, 1]
    assert list(stats.accepted_per_position) == [3, 2, 1, 0]
    assert stats.expected_accepted == 1.0
    assert stats.proposal_bytes == 28
    time = stats.time
    assert (time.draft_ns, time.queue_ns, time.forward_ns, time.verify_ns, time.wire_ns) == (12, 40, 80, 120, 160)
    assert (time.first_token_ns, time.total_ns) == (600, 2100)
    usage = builder.usage(5)
    assert (usage.prompt_tokens, usage.completion_tokens) == (5, 9)


def test_clocks_that_disagree_give_no_negative_time() -> None:
    builder = StatsBuilder(0)
    add(builder, verdict(0, 0, SOURCES[3], timings=pb.TargetTimings(forward_ns=10**9)))
    assert builder.stats.time.wire_ns == 0


def test_dishonesty_stays() -> None:
    builder = StatsBuilder(0)
    add(builder, verdict(0, 0, SOURCES[3], lossless=False))
    add(builder, verdict(0, 0, SOURCES[3]))
    assert not builder.lossless


def test_counts_agree_with_each_other_whatever_comes() -> None:
    luck = random.Random(1)
    builder = StatsBuilder(0)
    for _ in range(200):
        examined = luck.randrange(6)
        accepted = luck.randint(0, examined)
        last = SOURCES[1] if accepted < examined else SOURCES[2] if examined else SOURCES[3]
        add(builder, verdict(accepted, examined, last))
        stats = builder.stats
        assert sum(stats.drafted_per_position) == stats.drafted
        assert sum(stats.accepted_per_position) == stats.accepted
        assert len(stats.accepted_per_position) == len(stats.drafted_per_position)
        pairs = zip(stats.accepted_per_position, stats.drafted_per_position, strict=True)
        assert all(0 <= hits <= tries for hits, tries in pairs)
        total = stats.accepted + stats.resampled + stats.bonus + stats.target_only
        assert builder.usage(1).completion_tokens == total
