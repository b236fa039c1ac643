"""Metrics of a target process, acceptance among them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from draftproof.metrics.common import ENCODINGS, PREFIX, SECONDS, create_children
from draftproof.v1 import distribution_pb2, verdict_pb2
from draftproof.verification.intake import RefusalKind

_SOURCES = {
    verdict_pb2.TOKEN_SOURCE_ACCEPTED: "accepted",
    verdict_pb2.TOKEN_SOURCE_RESAMPLED: "resampled",
    verdict_pb2.TOKEN_SOURCE_BONUS: "bonus",
    verdict_pb2.TOKEN_SOURCE_TARGET: "target",
}
_RATE = (
    "acceptance rate = sum(rate(draftproof_spec_decode_num_accepted_tokens_total))"
    " / sum(rate(draftproof_spec_decode_num_draft_tokens_total)); bonus and resampled tokens never count as accepted."
)


class TargetMetrics:
    """Metrics of a target process.

    Args:
        registry: this process's own.
        max_gamma: positions to count.
    """

    def __init__(self, registry: CollectorRegistry, max_gamma: int) -> None:
        spec = f"{PREFIX}_spec_decode"
        self._drafts = Counter(f"{spec}_num_drafts", "Blocks verified with at least one proposal.", registry=registry)
        self._drafted = Counter(
            f"{spec}_num_draft_tokens",
            f"Proposals that took part in verification up to the cut of a stop. {_RATE}",
            registry=registry,
        )
        self._accepted = Counter(
            f"{spec}_num_accepted_tokens", f"Proposals accepted and emitted. {_RATE}", registry=registry
        )
        self._accepted_at = Counter(
            f"{spec}_num_accepted_tokens_per_pos",
            "Proposals accepted and emitted, by offset in the block.",
            ["position"],
            registry=registry,
        )
        self._expected = Counter(
            f"{spec}_expected_accepted_tokens",
            "Sum over tested positions of sum_x min(p(x), q(x)): the expectation of num_accepted_tokens, less noisy.",
            registry=registry,
        )
        self._committed = Counter(
            f"{PREFIX}_committed_tokens",
            "Tokens emitted, by source: accepted, resampled, bonus, or target (a round without proposals).",
            ["source"],
            registry=registry,
        )
        self._rounds = Counter(
            f"{PREFIX}_rounds", "Rounds verified, those without proposals included.", registry=registry
        )
        self._refused = Counter(
            f"{PREFIX}_refused_proposals", "Positions not verified as sent, by kind.", ["kind"], registry=registry
        )
        self._lossy = Counter(
            f"{PREFIX}_not_lossless_rounds",
            "Rounds whose output law a dishonest draft may have bent.",
            registry=registry,
        )
        self._encodings = Counter(
            f"{PREFIX}_proposals", "Proposals received, by q encoding.", ["encoding"], registry=registry
        )
        self._stale = Counter(
            f"{PREFIX}_stale_frames", "Frames dropped, by what was stale.", ["what"], registry=registry
        )
        self._failed = Counter(
            f"{PREFIX}_failed_sessions", "Sessions failed, by reason.", ["reason"], registry=registry
        )
        self._numerics = Counter(
            f"{PREFIX}_numerics_errors", "Rounds whose logits held NaN or infinity.", registry=registry
        )
        self._evicted = Counter(
            f"{PREFIX}_evicted_sessions", "Sessions that lost their slot to one that waited.", registry=registry
        )
        self._active = Gauge(f"{PREFIX}_active_sessions", "Sessions that hold a KV slot.", registry=registry)
        self._waiting = Gauge(f"{PREFIX}_waiting_sessions", "Sessions that wait for a KV slot.", registry=registry)
        self._rows = Histogram(
            f"{PREFIX}_forward_rows",
            "Rows of a forward pass.",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128),
            registry=registry,
        )
        self._tokens = Histogram(
            f"{PREFIX}_forward_tokens",
            "Tokens fed in a forward pass.",
            buckets=(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000),
            registry=registry,
        )
        self._forward = Histogram(
            f"{PREFIX}_forward_seconds", "Duration of a forward pass.", buckets=SECONDS, registry=registry
        )
        create_children(self._accepted_at, "position", map(str, range(max_gamma)))
        create_children(self._committed, "source", _SOURCES.values())
        create_children(self._refused, "kind", [kind.name.lower() for kind in RefusalKind])
        create_children(self._encodings, "encoding", ENCODINGS)
        create_children(self._stale, "what", ("session", "epoch", "round"))

    def verdict(self, verdict: verdict_pb2.Verdict) -> None:
        """Counts one round."""
        self._rounds.inc()
        if verdict.examined:
            self._drafts.inc()
        self._drafted.inc(verdict.examined)
        self._accepted.inc(verdict.accepted)
        for position in range(verdict.accepted):
            self._accepted_at.labels(position=str(position)).inc()
        self._expected.inc(verdict.expected_accepted)
        for token in verdict.tokens:
            self._committed.labels(source=_SOURCES[token.source]).inc()
        if not verdict.lossless:
            self._lossy.inc()

    def encoding(self, q: distribution_pb2.Distribution) -> None:
        """Counts one proposal."""
        self._encodings.labels(encoding=q.WhichOneof("encoding") or "none").inc()

    def refusal(self, kind: RefusalKind) -> None:
        """Counts one refused position."""
        self._refused.labels(kind=kind.name.lower()).inc()

    def stale(self, what: str) -> None:
        """Counts one dropped frame."""
        self._stale.labels(what=what).inc()

    def failed(self, reason: str) -> None:
        """Counts one failed session."""
        self._failed.labels(reason=reason).inc()

    def numerics(self) -> None:
        """Counts one round with NaN or infinity."""
        self._numerics.inc()

    def evicted(self) -> None:
        """Counts one eviction."""
        self._evicted.inc()

    def occupancy(self, active: int, waiting: int) -> None:
        """Sets the session gauges."""
        self._active.set(active)
        self._waiting.set(waiting)

    def forward(self, rows: int, tokens: int, forward_ns: int) -> None:
        """Records one forward pass."""
        self._rows.observe(rows)
        self._tokens.observe(tokens)
        self._forward.observe(forward_ns / 1e9)
