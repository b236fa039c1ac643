"""Metrics of a draft process."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from draftproof.metrics.common import ENCODINGS, PREFIX, SECONDS
from draftproof.v1 import target_pb2, verdict_pb2


class DraftMetrics:
    """Metrics of a draft process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._blocks = Histogram(
            f"{PREFIX}_draft_step_blocks",
            "Blocks advanced by one step of the drafter.",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128),
            registry=registry,
        )
        self._failures = Counter(
            f"{PREFIX}_drafting_failures", "Blocks cut short because the drafter failed.", registry=registry
        )
        self._forward = Counter(
            f"{PREFIX}_draft_forward_seconds", "Time spent in forward passes of the draft model.", registry=registry
        )
        self._forward_ns = 0
        self._parts = Histogram(
            f"{PREFIX}_round_seconds",
            "Parts of a round as its draft sees it: draft, wire (round trip less the target's share), queue, verify"
            " (forward pass, shared with batch mates), sample (everything after the logits).",
            ["part"],
            buckets=SECONDS,
            registry=registry,
        )
        self._gamma = Histogram(
            f"{PREFIX}_gamma",
            "Proposals asked for per round.",
            buckets=(0, 1, 2, 3, 4, 6, 8, 12, 16),
            registry=registry,
        )
        self._unused = Counter(
            f"{PREFIX}_unused_proposals",
            "Proposals sent but not examined: refused, or behind the cut of a stop.",
            registry=registry,
        )
        self._bytes = Counter(
            f"{PREFIX}_wire_bytes",
            "Bytes of proposals sent to targets by q encoding, and of verdicts received.",
            ["direction", "encoding"],
            registry=registry,
        )
        for part in ("draft", "wire", "queue", "verify", "sample"):
            self._parts.labels(part=part)
        for encoding in ENCODINGS[:-1]:
            self._bytes.labels(direction="sent", encoding=encoding)
        self._bytes.labels(direction="received", encoding="verdict")
        self._link = Gauge(f"{PREFIX}_target_link_up", "1 while the stream to the target is up.", registry=registry)

    def round(
        self, block: target_pb2.Block, verdict: verdict_pb2.Verdict, gamma: int, draft_ns: int, trip_ns: int
    ) -> None:
        """Records one round as its draft sees it; times in nanoseconds, the trip from sending to the verdict."""
        target = verdict.timings
        wire_ns = trip_ns - target.queue_ns - target.forward_ns - target.verify_ns
        for part, value in (
            ("draft", draft_ns),
            ("wire", max(0, wire_ns)),
            ("queue", target.queue_ns),
            ("verify", target.forward_ns),
            ("sample", target.verify_ns),
        ):
            self._parts.labels(part=part).observe(value / 1e9)
        self._gamma.observe(gamma)
        self._unused.inc(len(block.proposals) - verdict.examined)
        for proposal in block.proposals:
            encoding = proposal.q.WhichOneof("encoding") or "none"
            self._bytes.labels(direction="sent", encoding=encoding).inc(proposal.ByteSize())
        self._bytes.labels(direction="received", encoding="verdict").inc(verdict.ByteSize())

    def step(self, blocks: int, forward_ns: int) -> None:
        """Records one drafting step; `forward_ns` is the drafter's running total."""
        if blocks:
            self._blocks.observe(blocks)
        self._forward.inc((forward_ns - self._forward_ns) / 1e9)
        self._forward_ns = forward_ns

    def drafting_failed(self, blocks: int) -> None:
        """Counts blocks that a failure cut short."""
        self._failures.inc(blocks)

    def link(self, up: bool) -> None:
        """Sets the state of the link."""
        self._link.set(up)
