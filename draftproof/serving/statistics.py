"""Adds up a request's rounds into what its last message reports."""

from __future__ import annotations

from collections.abc import Iterable, MutableSequence, Sequence

from draftproof.v1 import generation_pb2
from draftproof.v1 import verdict_pb2 as pb


class StatsBuilder:
    """Counts over verdicts. Everything counted was emitted: a cut inside a block leaves the rest of it out (G1)."""

    def __init__(self, started_ns: int) -> None:
        self._started_ns = started_ns
        self.stats = pb.SpeculationStats(time=pb.TimeSplit())
        self.lossless = True
        self._completion_tokens = 0

    def add(self, verdict: pb.Verdict, *, draft_ns: int, round_trip_ns: int, proposal_bytes: int, now_ns: int) -> None:
        """Adds one round; times in nanoseconds, `proposal_bytes` as sent."""
        stats, time = self.stats, self.stats.time
        stats.rounds += 1
        stats.drafted += verdict.examined
        stats.accepted += verdict.accepted
        _count_positions(stats, verdict)
        _count_sources(stats, verdict.tokens)
        stats.expected_accepted += verdict.expected_accepted
        stats.refused += verdict.HasField("refusal")
        stats.proposal_bytes += proposal_bytes
        self.lossless = self.lossless and verdict.lossless
        target = verdict.timings
        time.draft_ns += draft_ns
        time.queue_ns += target.queue_ns
        time.forward_ns += target.forward_ns
        time.verify_ns += target.verify_ns
        time.wire_ns += max(0, round_trip_ns - target.queue_ns - target.forward_ns - target.verify_ns)
        time.total_ns = now_ns - self._started_ns
        if not self._completion_tokens and verdict.tokens:
            time.first_token_ns = time.total_ns
        self._completion_tokens += len(verdict.tokens)

    def usage(self, prompt_tokens: int) -> pb.Usage:
        """Token counts of what was streamed by this call."""
        return pb.Usage(prompt_tokens=prompt_tokens, completion_tokens=self._completion_tokens)


class ChunkStats:
    """Counts over streamed chunks, for a server that was lost before it could report."""

    def __init__(self) -> None:
        self.stats = pb.SpeculationStats()

    def add(self, chunk: generation_pb2.Chunk) -> None:
        """Adds one round."""
        stats = self.stats
        stats.rounds += 1
        stats.drafted += chunk.examined
        stats.accepted += chunk.accepted
        _count_positions(stats, chunk)
        _count_sources(stats, chunk.tokens)


def merge(into: pb.SpeculationStats, other: pb.SpeculationStats) -> None:
    """Adds the counts of `other`; times but the total too."""
    for name in ("rounds", "drafted", "accepted", "resampled", "bonus", "target_only", "refused", "proposal_bytes"):
        setattr(into, name, getattr(into, name) + getattr(other, name))
    into.expected_accepted += other.expected_accepted
    for mine, theirs in (
        (into.drafted_per_position, other.drafted_per_position),
        (into.accepted_per_position, other.accepted_per_position),
    ):
        _add(mine, theirs)
    for name in ("draft_ns", "queue_ns", "forward_ns", "verify_ns", "wire_ns"):
        setattr(into.time, name, getattr(into.time, name) + getattr(other.time, name))


def _count_sources(stats: pb.SpeculationStats, tokens: Iterable[pb.Token]) -> None:
    for token in tokens:
        stats.resampled += token.source == pb.TOKEN_SOURCE_RESAMPLED
        stats.bonus += token.source == pb.TOKEN_SOURCE_BONUS
        stats.target_only += token.source == pb.TOKEN_SOURCE_TARGET


def _count_positions(stats: pb.SpeculationStats, of: pb.Verdict | generation_pb2.Chunk) -> None:
    widths = of.widths or [1] * of.examined
    _add(stats.drafted_per_position, widths)
    _add(stats.accepted_per_position, [int(i < of.accepted) for i in range(len(widths))])


def _add(counters: MutableSequence[int], counts: Sequence[int]) -> None:
    """Adds each count to its counter, growing the list."""
    counters.extend([0] * (len(counts) - len(counters)))
    for i, count in enumerate(counts):
        counters[i] += count
