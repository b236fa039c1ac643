"""Metrics of a target process, acceptance among them."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from draftproof.errors import BY_REASON
from draftproof.metrics.audit import AuditMetrics
from draftproof.metrics.common import (
    ENCODINGS,
    OTHER,
    PREFIX,
    ROWS,
    SECONDS,
    Names,
    Recorder,
    create_children,
    never_raises,
)
from draftproof.sampling.params import Rule
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
_PER_POSITION = (
    "rate at position i = rate(num_accepted_tokens_per_pos_total{position=i})"
    " / rate(num_draft_tokens_per_pos_total{position=i});"
    " given that all before it were accepted: / rate(num_tested_tokens_per_pos_total{position=i})."
)


class TargetMetrics(Recorder):
    """Metrics of a target process.

    Args:
        registry: this process's own.
        max_gamma: positions to count.
    """

    def __init__(self, registry: CollectorRegistry, max_gamma: int) -> None:
        super().__init__(registry)
        self._count_acceptance(registry, max_gamma)
        self._count_trouble(registry)
        self._measure_passes(registry)
        self._reasons = Names([*BY_REASON, OTHER])
        self.audit = AuditMetrics(registry, self)

    def _count_acceptance(self, registry: CollectorRegistry, max_gamma: int) -> None:
        spec = f"{PREFIX}_spec_decode"
        self._drafts = Counter(
            f"{spec}_num_drafts",
            "Blocks verified with at least one proposal, by rule; mean accepted length = 1 +"
            " rate(num_accepted_tokens_total) / rate(num_drafts_total).",
            ["rule"],
            registry=registry,
        )
        self._drafted = Counter(
            f"{spec}_num_draft_tokens",
            f"Proposals that took part in verification up to the cut of a stop, by rule. {_RATE}",
            ["rule"],
            registry=registry,
        )
        self._accepted = Counter(
            f"{spec}_num_accepted_tokens",
            f"Proposals accepted and emitted, by rule. {_RATE}",
            ["rule"],
            registry=registry,
        )
        self._drafted_at, self._tested_at, self._accepted_at = (
            Counter(f"{spec}_num_{what}_tokens_per_pos", f"{text} {_PER_POSITION}", ["position"], registry=registry)
            for what, text in (
                ("draft", "Proposals that took part in verification, by offset in the block (in a tree, depth)."),
                (
                    "tested",
                    "Proposals whose predecessors in the block were all accepted, by offset in it; siblings in a tree"
                    " count as one.",
                ),
                ("accepted", "Proposals accepted and emitted, by offset in the block."),
            )
        )
        self._expected = Counter(
            f"{spec}_expected_accepted_tokens",
            "The expectation of num_accepted_tokens, by rule, less noisy: the sum of sum_x min(p(x), q(x)) over tested"
            " positions (token), of sum_x min(rho p(x), q(x)) over all (block), of the mass kept (lenient, typical);"
            " the count itself (coupled); of sum_x min(r(x), q(x)) over the proposals tried, r being what those before"
            " left of p (tree). expected rate = rate(expected_accepted_tokens_total)"
            " / rate(num_draft_tokens_total).",
            ["rule"],
            registry=registry,
        )
        self._loss = Counter(
            f"{PREFIX}_lossy_variation",
            "Total variation that lossy rules introduced, summed over the tokens they emitted, by rule; per token ="
            " rate(lossy_variation_total) / rate(lossy_tokens_total).",
            ["rule"],
            registry=registry,
        )
        self._lossy_tokens = Counter(
            f"{PREFIX}_lossy_tokens", "Tokens emitted under a lossy rule, by rule.", ["rule"], registry=registry
        )
        self._committed = Counter(
            f"{PREFIX}_committed_tokens",
            "Tokens emitted, by source: accepted, resampled, bonus, or target (a round without proposals); tokens per"
            " target step = sum(rate(draftproof_committed_tokens_total)) / sum(rate(draftproof_rounds_total)).",
            ["source"],
            registry=registry,
        )
        self._rounds = Counter(
            f"{PREFIX}_rounds", "Rounds verified (target steps), those without proposals included.", registry=registry
        )
        self._positions = [str(position) for position in range(max_gamma)]
        for counter in (self._drafted_at, self._tested_at, self._accepted_at):
            create_children(counter, "position", self._positions)
        create_children(self._committed, "source", _SOURCES.values())
        for counter in (self._drafts, self._drafted, self._accepted, self._expected):
            create_children(counter, "rule", Rule)
        for counter in (self._loss, self._lossy_tokens):
            create_children(counter, "rule", [rule for rule in Rule if rule.lossy])

    def _count_trouble(self, registry: CollectorRegistry) -> None:
        self._refused = Counter(
            f"{PREFIX}_refused_proposals",
            "Positions not verified as sent, by kind: malformed_q, draw_mismatch (the target's own draw took the"
            " place of the token sent), zero_mass, quarantined (the audit caught the draft lying).",
            ["kind"],
            registry=registry,
        )
        self._lossy = Counter(
            f"{PREFIX}_not_lossless_rounds",
            "Rounds whose output law a dishonest draft may have bent; those of lossy rules don't count here.",
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
        self._reused = Counter(
            f"{PREFIX}_reused_prefix_tokens",
            "Tokens whose KV a new session found in its slot, left there by an earlier one.",
            registry=registry,
        )
        self._shared = Counter(
            f"{PREFIX}_shared_prefix_tokens",
            "Tokens whose KV a session copied from another that was running, as the samples of one prompt do.",
            registry=registry,
        )
        self._evicted = Counter(
            f"{PREFIX}_evicted_sessions", "Sessions that lost their slot to one that waited.", registry=registry
        )
        self._healthy = Gauge(
            f"{PREFIX}_watchdog_healthy", "1 while runnable work makes progress, 0 after a stall.", registry=registry
        )
        self._stalls = Counter(
            f"{PREFIX}_watchdog_stalls", "Times that runnable work made no progress for too long.", registry=registry
        )
        self._healthy.set(1)
        create_children(self._refused, "kind", [kind.name.lower() for kind in RefusalKind])
        create_children(self._encodings, "encoding", ENCODINGS)
        create_children(self._stale, "what", ("session", "epoch", "round"))
        create_children(self._failed, "reason", BY_REASON)

    def _measure_passes(self, registry: CollectorRegistry) -> None:
        gauges = {
            "active_sessions": "Sessions that hold a KV slot.",
            "waiting_sessions": "Sessions that wait for a KV slot.",
            "runnable_sessions": "Sessions with a round or prompt tokens to compute.",
            "kv_slots": "KV slots; slot use = active_sessions / kv_slots.",
            "waiting_limit": "Most sessions that may wait (queue_limit); one more is refused.",
            "kv_cached_tokens": "Tokens whose KV is cached; KV use = kv_cached_tokens / kv_capacity_tokens.",
            "kv_capacity_tokens": "Tokens the KV cache holds: slots times the longest context.",
        }
        self._gauges = {name: Gauge(f"{PREFIX}_{name}", text, registry=registry) for name, text in gauges.items()}
        self._rows = Histogram(
            f"{PREFIX}_forward_rows",
            "Rows of a forward pass; batch occupancy = mean rows / kv_slots.",
            buckets=ROWS,
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
        self._queue = Histogram(
            f"{PREFIX}_round_queue_seconds",
            "From a round's arrival to the start of its forward pass.",
            buckets=SECONDS,
            registry=registry,
        )

    def limits(self, slots: int, capacity_tokens: int, queue_limit: int) -> None:
        """Sets what the process was built for."""
        for name, value in (
            ("kv_slots", slots),
            ("kv_capacity_tokens", capacity_tokens),
            ("waiting_limit", queue_limit),
        ):
            self._gauges[name].set(value)

    def follow(self, **sources: Callable[[], float]) -> None:
        """Reads gauges at scrape time: active_sessions, waiting_sessions, runnable_sessions, kv_cached_tokens."""
        for name, read in sources.items():
            self._gauges[name].set_function(self.reading(name, read))

    @never_raises
    def verdict(self, verdict: verdict_pb2.Verdict, rule: Rule) -> None:
        """Counts one round."""
        self._rounds.inc()
        self._queue.observe(verdict.timings.queue_ns / 1e9)
        if verdict.examined:
            self._drafts.labels(rule=rule).inc()
        self._drafted.labels(rule=rule).inc(verdict.examined)
        self._accepted.labels(rule=rule).inc(verdict.accepted)
        for position, width in zip(self._positions, verdict.widths or [1] * verdict.examined, strict=False):
            self._drafted_at.labels(position=position).inc(width)
        rejected = any(token.source == verdict_pb2.TOKEN_SOURCE_RESAMPLED for token in verdict.tokens)
        for counter, reach in ((self._tested_at, verdict.accepted + rejected), (self._accepted_at, verdict.accepted)):
            for position in self._positions[:reach]:
                counter.labels(position=position).inc()
        self._expected.labels(rule=rule).inc(verdict.expected_accepted)
        for token in verdict.tokens:
            self._committed.labels(source=_SOURCES[token.source]).inc()
        if rule.lossy:
            self._lossy_tokens.labels(rule=rule).inc(len(verdict.tokens))
            self._loss.labels(rule=rule).inc(sum(token.loss for token in verdict.tokens))
        elif not verdict.lossless:
            self._lossy.inc()

    @never_raises
    def encoding(self, q: distribution_pb2.Distribution) -> None:
        """Counts one proposal."""
        self._encodings.labels(encoding=q.WhichOneof("encoding") or "none").inc()

    @never_raises
    def refusal(self, kind: RefusalKind) -> None:
        """Counts one refused position."""
        self._refused.labels(kind=kind.name.lower()).inc()

    @never_raises
    def stale(self, what: str) -> None:
        """Counts one dropped frame."""
        self._stale.labels(what=what).inc()

    @never_raises
    def failed(self, reason: str) -> None:
        """Counts one failed session."""
        self._failed.labels(reason=self._reasons(reason)).inc()

    @never_raises
    def numerics(self) -> None:
        """Counts one round with NaN or infinity."""
        self._numerics.inc()

    @never_raises
    def reused(self, tokens: int) -> None:
        """Counts tokens that a new session need not feed."""
        self._reused.inc(tokens)

    @never_raises
    def shared(self, tokens: int) -> None:
        """Counts tokens that a session copied rather than feed them."""
        self._shared.inc(tokens)

    @never_raises
    def evicted(self) -> None:
        """Counts one eviction."""
        self._evicted.inc()

    @never_raises
    def health(self, healthy: bool) -> None:
        """Records what the watchdog found."""
        self._healthy.set(healthy)
        if not healthy:
            self._stalls.inc()

    @never_raises
    def forward(self, rows: int, tokens: int, forward_ns: int) -> None:
        """Records one forward pass."""
        self._rows.observe(rows)
        self._tokens.observe(tokens)
        self._forward.observe(forward_ns / 1e9)
