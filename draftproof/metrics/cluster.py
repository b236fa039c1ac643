"""Metrics of an orchestrator."""

from __future__ import annotations

from collections import Counter as TallyCounter
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from draftproof.errors import BY_REASON
from draftproof.metrics.common import OTHER, PREFIX, Names, Recorder, create_children, never_raises
from draftproof.v1 import generation_pb2

FALLBACK_REASONS = (
    "draft_lost",
    "draft_slow",
    "target_lost",
    "target_slow",
    "draining",
    "mismatch",
    "overloaded",
    "no_draft",
    "quarantined",
)
OUTCOMES = ("OK", *BY_REASON)
NO_DRAFT = "none"
MAX_WORKERS = 128


class OrchestratorMetrics(Recorder):
    """Metrics of an orchestrator: the cluster as its clients see it, under names of its own.

    Acceptance by draft and target comes from the verdicts that passed through; the targets' own counters are the
    same events, so never add the two.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self._count_rounds(registry)
        self._measure_requests(registry)
        cluster = f"{PREFIX}_cluster"
        self._running = Gauge(f"{cluster}_running_requests", "Requests admitted.", registry=registry)
        self._waiting = Gauge(f"{cluster}_waiting_requests", "Requests that wait for admission.", registry=registry)
        self._limit = Gauge(f"{cluster}_waiting_limit", "Most requests that may wait (queue_limit).", registry=registry)
        self._workers = Gauge(f"{cluster}_workers", "Workers by role and state.", ["role", "state"], registry=registry)
        self._restarts = Counter(
            f"{cluster}_worker_restarts", "Workers replaced, by role.", ["role"], registry=registry
        )
        self._drafts, self._targets = Names([NO_DRAFT], MAX_WORKERS), Names(limit=MAX_WORKERS)
        self._reasons, self._outcomes = Names([*FALLBACK_REASONS, OTHER]), Names([*OUTCOMES, OTHER])
        self.fallbacks: TallyCounter[str] = TallyCounter()

    def _count_rounds(self, registry: CollectorRegistry) -> None:
        cluster = f"{PREFIX}_cluster"
        pair = ["draft", "target", "rule"]
        self._drafted = Counter(
            f"{cluster}_draft_tokens",
            f"Proposals examined, by draft, target and rule. Pooled rate = sum(rate({cluster}_accepted_tokens_total))"
            f" / sum(rate({cluster}_draft_tokens_total)); bonus and resampled tokens never count as accepted.",
            pair,
            registry=registry,
        )
        self._accepted = Counter(
            f"{cluster}_accepted_tokens",
            f"Proposals accepted and emitted, by draft, target and rule; the rate: see {cluster}_draft_tokens_total.",
            pair,
            registry=registry,
        )
        self._committed = Counter(
            f"{cluster}_committed_tokens",
            "Tokens streamed, by draft, target and rule; tokens per target step ="
            f" sum(rate({cluster}_committed_tokens_total)) / sum(rate({cluster}_rounds_total)).",
            pair,
            registry=registry,
        )
        self._rounds = Counter(f"{cluster}_rounds", "Rounds, by draft, target and rule.", pair, registry=registry)
        self._fallbacks = Counter(
            f"{cluster}_fallbacks",
            "Times a request went on elsewhere or without a draft, by reason.",
            ["reason"],
            registry=registry,
        )
        create_children(self._fallbacks, "reason", FALLBACK_REASONS)

    def _measure_requests(self, registry: CollectorRegistry) -> None:
        cluster = f"{PREFIX}_cluster"
        self._requests = Counter(f"{cluster}_requests", "Requests ended, by outcome.", ["outcome"], registry=registry)
        self._first = Histogram(
            f"{cluster}_time_to_first_token_seconds",
            "From a request's arrival to its first token.",
            buckets=(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 30.0),
            registry=registry,
        )
        self._between = Histogram(
            f"{cluster}_inter_token_seconds",
            "Time between tokens: the gap between two rounds, divided by the tokens that end it, once per token.",
            buckets=(0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 1.0, 2.5),
            registry=registry,
        )
        self._whole = Histogram(
            f"{cluster}_request_seconds",
            "From a request's arrival to its end.",
            buckets=(0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92),
            registry=registry,
        )
        create_children(self._requests, "outcome", OUTCOMES)

    def follow(
        self,
        running: Callable[[], float],
        waiting: Callable[[], float],
        limit: int,
        workers: dict[tuple[str, str], Callable[[], float]],
    ) -> None:
        """Reads gauges at scrape time; `workers` gives their number by role and state."""
        self._running.set_function(self.reading("running", running))
        self._waiting.set_function(self.reading("waiting", waiting))
        self._limit.set(limit)
        for (role, state), count in workers.items():
            self._workers.labels(role=role, state=state).set_function(self.reading("workers", count))
            self._restarts.labels(role=role)

    @never_raises
    def pairs(self, drafts: Iterable[str], targets: Iterable[str], rule: str) -> None:
        """Makes the series of all pairs before their first round: a rate can't see what a series begins with."""
        drafts = [NO_DRAFT, *drafts]
        for target in targets:
            for draft in drafts:
                pair = {"draft": self._drafts(draft), "target": self._targets(target), "rule": rule}
                for counter in (self._rounds, self._drafted, self._accepted, self._committed):
                    counter.labels(**pair)

    @never_raises
    def fallback(self, reason: str) -> None:
        """Counts one fallback."""
        self.fallbacks[reason] += 1
        self._fallbacks.labels(reason=self._reasons(reason)).inc()

    @never_raises
    def restarted(self, role: str) -> None:
        """Counts one replaced worker."""
        self._restarts.labels(role=role).inc()

    @never_raises
    def round(self, chunk: generation_pb2.Chunk, *, draft: str, target: str, rule: str) -> None:
        """Counts one round of a pair of workers; `draft` is "none" for target-only."""
        pair = {"draft": self._drafts(draft), "target": self._targets(target), "rule": rule}
        self._rounds.labels(**pair).inc()
        self._drafted.labels(**pair).inc(chunk.examined)
        self._accepted.labels(**pair).inc(chunk.accepted)
        self._committed.labels(**pair).inc(len(chunk.tokens))

    @never_raises
    def first_token(self, seconds: float) -> None:
        """Records the time to the first token."""
        self._first.observe(seconds)

    @never_raises
    def gap(self, seconds: float, tokens: int) -> None:
        """Records the time between two rounds that `tokens` tokens ended."""
        for _ in range(tokens):
            self._between.observe(seconds / tokens)

    @never_raises
    def ended(self, outcome: str, seconds: float) -> None:
        """Counts one request."""
        self._requests.labels(outcome=self._outcomes(outcome)).inc()
        self._whole.observe(seconds)
