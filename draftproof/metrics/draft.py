"""Metrics of a draft process. Acceptance is not among them: the target counts it."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from draftproof.metrics.common import ENCODINGS, PREFIX, ROWS, WIRE_SECONDS, Recorder, create_children, never_raises
from draftproof.v1 import target_pb2, verdict_pb2

PARTS = ("draft", "wire", "queue", "verify", "sample")


class DraftMetrics(Recorder):
    """Metrics of a draft process.

    Bytes are counted on this side alone: each link has one draft at its end, so sums over processes count them once.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self._blocks = Histogram(
            f"{PREFIX}_draft_step_blocks",
            "Blocks advanced by one step of the drafter.",
            buckets=ROWS,
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
            "Parts of a round as its draft sees it: draft, wire (round trip less the target's share), queue (on the"
            " target), verify (its forward pass, shared with batch mates), sample (everything after the logits).",
            ["part"],
            buckets=WIRE_SECONDS,
            registry=registry,
        )
        self._gamma = Histogram(
            f"{PREFIX}_gamma",
            "Proposals asked for per round (gamma); mean = rate(draftproof_gamma_sum) / rate(draftproof_gamma_count).",
            buckets=(0, 1, 2, 3, 4, 6, 8, 12, 16),
            registry=registry,
        )
        self._unused = Counter(
            f"{PREFIX}_unused_proposals",
            "Proposals sent but not examined, by reason: refused, or cut (behind a stop).",
            ["reason"],
            registry=registry,
        )
        self._ahead = Counter(
            f"{PREFIX}_ahead_rounds",
            "Rounds during which the next block was drafted ahead, by outcome: used (a guess about the verdict was"
            " right), or dropped; used / all = share of rounds that waited for no drafting.",
            ["outcome"],
            registry=registry,
        )
        self._dropped = Counter(
            f"{PREFIX}_ahead_proposals_dropped",
            "Proposals drafted ahead for a verdict that came out otherwise; never sent.",
            registry=registry,
        )
        self._bytes = Counter(
            f"{PREFIX}_wire_bytes",
            "Serialised bytes of proposals sent to targets by q encoding, and of verdicts received; framing and TLS"
            " not included.",
            ["direction", "encoding"],
            registry=registry,
        )
        self._links = Gauge(f"{PREFIX}_target_links", "Streams to targets that are up.", registry=registry)
        self._requests = Gauge(f"{PREFIX}_draft_requests", "Requests that this draft runs.", registry=registry)
        for part in PARTS:
            self._parts.labels(part=part)
        for encoding in ENCODINGS:
            self._bytes.labels(direction="sent", encoding=encoding)
        self._bytes.labels(direction="received", encoding="verdict")
        create_children(self._unused, "reason", ("refused", "cut"))
        create_children(self._ahead, "outcome", ("used", "dropped"))

    def follow(self, requests: Callable[[], float]) -> None:
        """Reads the number of requests at scrape time."""
        self._requests.set_function(self.reading("requests", requests))

    @never_raises
    def round(
        self, block: target_pb2.Block, verdict: verdict_pb2.Verdict, gamma: int, draft_ns: int, trip_ns: int
    ) -> None:
        """Records one round as its draft sees it; times in nanoseconds, the trip from sending to the verdict."""
        target = verdict.timings
        wire_ns = trip_ns - target.queue_ns - target.forward_ns - target.verify_ns
        times = (draft_ns, max(0, wire_ns), target.queue_ns, target.forward_ns, target.verify_ns)
        for part, value in zip(PARTS, times, strict=True):
            self._parts.labels(part=part).observe(value / 1e9)
        self._gamma.observe(gamma)
        reason = "refused" if verdict.HasField("refusal") else "cut"
        self._unused.labels(reason=reason).inc(max(0, len(block.proposals) - verdict.examined))
        for proposal in block.proposals:
            encoding = proposal.q.WhichOneof("encoding") or "none"
            self._bytes.labels(direction="sent", encoding=encoding).inc(proposal.ByteSize())
        self._bytes.labels(direction="received", encoding="verdict").inc(verdict.ByteSize())

    @never_raises
    def step(self, blocks: int, forward_ns: int) -> None:
        """Records one drafting step; `forward_ns` is the drafter's running total."""
        if blocks:
            self._blocks.observe(blocks)
        self._forward.inc((forward_ns - self._forward_ns) / 1e9)
        self._forward_ns = forward_ns

    @never_raises
    def ahead(self, used: bool, dropped: int) -> None:
        """Counts a round during which the next block was drafted ahead, and the proposals that were for nothing."""
        self._ahead.labels(outcome="used" if used else "dropped").inc()
        self._dropped.inc(dropped)

    @never_raises
    def drafting_failed(self, blocks: int) -> None:
        """Counts blocks that a failure cut short."""
        self._failures.inc(blocks)

    @never_raises
    def link(self, up: bool) -> None:
        """Counts a stream that came up or went down."""
        self._links.inc(1 if up else -1)
