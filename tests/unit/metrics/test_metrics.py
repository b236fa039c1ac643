"""What the metrics count, and that counting can't hurt."""

from __future__ import annotations

import inspect
import math
import re
import threading
from typing import Any

import pytest
import structlog
from prometheus_client import CollectorRegistry, generate_latest

from draftproof.metrics.cluster import FALLBACK_REASONS, MAX_WORKERS, OrchestratorMetrics
from draftproof.metrics.common import ENCODINGS, Recorder
from draftproof.metrics.draft import DraftMetrics
from draftproof.metrics.target import TargetMetrics
from draftproof.sampling.params import Rule
from draftproof.v1 import distribution_pb2, generation_pb2, target_pb2, verdict_pb2
from draftproof.verification.intake import RefusalKind
from orchestrator.attempt import Reason

GAMMA = 4
SPEC = "draftproof_spec_decode"


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def target(registry: CollectorRegistry) -> TargetMetrics:
    return TargetMetrics(registry, GAMMA)


MAKERS = [target, DraftMetrics, OrchestratorMetrics]


def verdict(examined: int, accepted: int, **fields: Any) -> verdict_pb2.Verdict:
    last = verdict_pb2.TOKEN_SOURCE_BONUS if accepted == examined else verdict_pb2.TOKEN_SOURCE_RESAMPLED
    sources = [verdict_pb2.TOKEN_SOURCE_ACCEPTED] * accepted + [last if examined else verdict_pb2.TOKEN_SOURCE_TARGET]
    return verdict_pb2.Verdict(
        **{"lossless": True} | fields,
        examined=examined,
        accepted=accepted,
        tokens=[verdict_pb2.Token(id=1, source=source) for source in sources],
    )


def per_position(registry: CollectorRegistry, what: str) -> list[float | None]:
    name = f"{SPEC}_num_{what}_tokens_per_pos_total"
    return [registry.get_sample_value(name, {"position": str(i)}) for i in range(GAMMA)]


def test_acceptance_counts_examined_and_accepted_alone(registry: CollectorRegistry) -> None:
    metrics = target(registry)
    for examined, accepted in ((4, 4), (4, 1), (2, 0), (0, 0)):
        metrics.verdict(verdict(examined, accepted, expected_accepted=0.5), Rule.BLOCK)
    metrics.verdict(verdict(2, 1), Rule.TOKEN)
    value = registry.get_sample_value
    rule = {"rule": "block"}
    assert value(f"{SPEC}_num_drafts_total", rule) == 3
    assert value(f"{SPEC}_num_draft_tokens_total", rule) == 10
    assert value(f"{SPEC}_num_accepted_tokens_total", rule) == 5  # bonus and resampled tokens are no acceptance
    assert value(f"{SPEC}_expected_accepted_tokens_total", rule) == 2.0
    assert value(f"{SPEC}_num_accepted_tokens_total", {"rule": "token"}) == 1
    assert value("draftproof_rounds_total") == 5
    sources = {s: value("draftproof_committed_tokens_total", {"source": s}) for s in ("accepted", "resampled", "bonus")}
    assert sources == {"accepted": 6, "resampled": 3, "bonus": 1}
    assert value("draftproof_committed_tokens_total", {"source": "target"}) == 1


def test_a_lossy_rule_is_counted_with_what_it_loses_and_as_no_lie(registry: CollectorRegistry) -> None:
    metrics = target(registry)
    told = verdict(2, 2, lossless=False)
    for token in told.tokens:
        token.loss = 0.125
    metrics.verdict(told, Rule.LENIENT)
    metrics.verdict(verdict(1, 1, lossless=False), Rule.BLOCK)
    value = registry.get_sample_value
    assert value("draftproof_lossy_tokens_total", {"rule": "lenient"}) == 3
    assert value("draftproof_lossy_variation_total", {"rule": "lenient"}) == 0.375
    assert value("draftproof_lossy_tokens_total", {"rule": "typical"}) == 0
    assert value("draftproof_lossy_tokens_total", {"rule": "block"}) is None
    assert value("draftproof_not_lossless_rounds_total") == 1


def test_positions_drafted_tested_accepted(registry: CollectorRegistry) -> None:
    """A position is tested where all before it were accepted; conditional rates divide by that."""
    metrics = target(registry)
    for examined, accepted in ((4, 4), (4, 1), (2, 0), (3, 3)):
        metrics.verdict(verdict(examined, accepted), Rule.BLOCK)
    assert per_position(registry, "draft") == [4, 4, 3, 2]
    assert per_position(registry, "tested") == [4, 3, 2, 1]
    assert per_position(registry, "accepted") == [3, 2, 2, 1]


def test_operators_names_and_formulas(registry: CollectorRegistry) -> None:
    target(registry)
    text = generate_latest(registry).decode()
    for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_accepted_tokens_per_pos"):
        assert f"# TYPE {SPEC}_{name}_total counter" in text
    help_of_rate = next(line for line in text.splitlines() if f"HELP {SPEC}_num_accepted_tokens_total" in line)
    assert f"sum(rate({SPEC}_num_accepted_tokens_total)) / sum(rate({SPEC}_num_draft_tokens_total))" in help_of_rate
    assert "bonus and resampled tokens never count as accepted" in help_of_rate


def test_the_target_alone_exports_acceptance(registry: CollectorRegistry) -> None:
    draft, cluster = CollectorRegistry(), CollectorRegistry()
    target(registry)
    DraftMetrics(draft)
    OrchestratorMetrics(cluster)
    names = [{family.name for family in r.collect()} for r in (registry, draft, cluster)]
    shared = {"draftproof_build_info", "draftproof_metrics_errors"}
    assert names[0] & names[1] == names[0] & names[2] == names[1] & names[2] == shared
    assert not any("accept" in name for name in names[1])
    assert all(name.startswith("draftproof_cluster_") for name in names[2] - shared)


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        *((f"{SPEC}_num_accepted_tokens_per_pos_total", {"position": str(i)}) for i in range(GAMMA)),
        *(("draftproof_refused_proposals_total", {"kind": kind.name.lower()}) for kind in RefusalKind),
        *(("draftproof_proposals_total", {"encoding": encoding}) for encoding in ENCODINGS),
        *(("draftproof_stale_frames_total", {"what": what}) for what in ("session", "epoch", "round")),
        *(("draftproof_committed_tokens_total", {"source": s}) for s in ("accepted", "resampled", "bonus", "target")),
        ("draftproof_failed_sessions_total", {"reason": "PREFIX_LOST"}),
        ("draftproof_not_lossless_rounds_total", {}),
        ("draftproof_evicted_sessions_total", {}),
        ("draftproof_numerics_errors_total", {}),
        ("draftproof_watchdog_stalls_total", {}),
        ("draftproof_round_queue_seconds_count", {}),
        ("draftproof_round_seconds_count", {"part": "wire"}),
        *(("draftproof_wire_bytes_total", {"direction": "sent", "encoding": encoding}) for encoding in ENCODINGS),
        ("draftproof_wire_bytes_total", {"direction": "received", "encoding": "verdict"}),
        ("draftproof_unused_proposals_total", {"reason": "cut"}),
        *(("draftproof_cluster_fallbacks_total", {"reason": reason}) for reason in FALLBACK_REASONS),
        ("draftproof_cluster_requests_total", {"outcome": "OVERLOADED"}),
        ("draftproof_cluster_time_to_first_token_seconds_count", {}),
        ("draftproof_metrics_errors_total", {}),
    ],
)
def test_zeros_exist_before_the_first_event(name: str, labels: dict[str, str]) -> None:
    values = []
    for make in MAKERS:
        registry = CollectorRegistry()
        make(registry)
        values.append(registry.get_sample_value(name, labels))
    assert 0.0 in values


def test_fallback_reasons_are_the_orchestrators() -> None:
    assert set(FALLBACK_REASONS) == {reason.value for reason in Reason}


@pytest.mark.parametrize("make", MAKERS)
def test_no_created_series_and_names_with_units(make: Any, registry: CollectorRegistry) -> None:
    make(registry)
    text = generate_latest(registry).decode()
    assert "_created" not in text
    names = set(re.findall(r"^# HELP (\S+)", text, re.MULTILINE))
    assert all(name.startswith("draftproof_") for name in names)
    assert not [name for name in names if re.search(r"_(ms|ns|mb|perc|percent)(_|$)", name)]


def test_labels_are_bounded(registry: CollectorRegistry) -> None:
    metrics = OrchestratorMetrics(registry)
    chunk = generation_pb2.Chunk(examined=2, accepted=1)
    for i in range(3 * MAX_WORKERS):
        metrics.round(chunk, draft=f"draft-{i}", target="target-0", rule="token")
        metrics.fallback(f"reason {i}")
        metrics.ended(f"outcome {i}", 1.0)
    labels = {"target": "target-0", "rule": "token"}
    series = [s for f in registry.collect() for s in f.samples if s.name == "draftproof_cluster_rounds_total"]
    assert len(series) <= MAX_WORKERS + 1
    assert sum(s.value for s in series) == 3 * MAX_WORKERS
    other = registry.get_sample_value("draftproof_cluster_rounds_total", labels | {"draft": "other"})
    assert other is not None
    assert other > MAX_WORKERS
    assert registry.get_sample_value("draftproof_cluster_fallbacks_total", {"reason": "other"}) == 3 * MAX_WORKERS
    assert registry.get_sample_value("draftproof_cluster_requests_total", {"outcome": "other"}) == 3 * MAX_WORKERS


def test_pairs_exist_before_their_first_round(registry: CollectorRegistry) -> None:
    metrics = OrchestratorMetrics(registry)
    metrics.pairs(["draft-0"], ["target-0"], "token")
    for draft in ("none", "draft-0"):
        labels = {"draft": draft, "target": "target-0", "rule": "token"}
        for name in ("rounds", "draft_tokens", "accepted_tokens", "committed_tokens"):
            assert registry.get_sample_value(f"draftproof_cluster_{name}_total", labels) == 0


def test_reasons_and_positions_of_a_target_are_bounded(registry: CollectorRegistry) -> None:
    metrics = target(registry)
    before = len(generate_latest(registry).splitlines())
    for i in range(50):
        metrics.failed(f"reason {i}")
        metrics.verdict(verdict(50, 50), Rule.BLOCK)
    assert len(generate_latest(registry).splitlines()) == before + 1
    assert registry.get_sample_value("draftproof_failed_sessions_total", {"reason": "other"}) == 50


def recorders() -> list[tuple[Any, str]]:
    found = []
    for make, cls in zip(MAKERS, (TargetMetrics, DraftMetrics, OrchestratorMetrics), strict=True):
        methods = [name for name, member in vars(cls).items() if inspect.isfunction(member) and name[0] != "_"]
        found += [(make, name) for name in methods if name not in ("follow", "limits")]
    return found


@pytest.mark.parametrize(("make", "method"), recorders())
def test_no_method_that_records_ever_raises(make: Any, method: str, registry: CollectorRegistry) -> None:
    """Whatever goes wrong inside costs a count of errors, and one line in the log."""
    metrics = make(registry)
    parameters = list(inspect.signature(getattr(metrics, method)).parameters.values())
    names = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    wrong = [object() for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    if not parameters:
        metrics._evicted = metrics._numerics = None
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            getattr(metrics, method)(*wrong, **{name: object() for name in names})
    lost = registry.get_sample_value("draftproof_metrics_errors_total")
    # a label takes anything: what is not recorded as an error was recorded as the value "other" or its text
    assert lost in (0.0, 3.0)
    assert len(logs) == (1 if lost else 0)


def test_a_broken_gauge_costs_itself_not_the_scrape(registry: CollectorRegistry) -> None:
    metrics = DraftMetrics(registry)
    metrics.follow(lambda: 1 / 0)
    with structlog.testing.capture_logs():
        text = generate_latest(registry).decode()
    assert "draftproof_draft_requests NaN" in text
    assert "draftproof_target_links 0.0" in text
    value = registry.get_sample_value("draftproof_draft_requests")
    assert value is not None
    assert math.isnan(value)


def test_registries_stay_apart() -> None:
    """Two replicas in one process, as in tests or on Ray: neither counts the other's events."""
    first, second = CollectorRegistry(), CollectorRegistry()
    one, two = target(first), target(second)
    one.verdict(verdict(2, 1), Rule.BLOCK)
    two.verdict(verdict(4, 4), Rule.BLOCK)
    two.verdict(verdict(4, 0), Rule.BLOCK)
    name, rule = f"{SPEC}_num_draft_tokens_total", {"rule": "block"}
    assert (first.get_sample_value(name, rule), second.get_sample_value(name, rule)) == (2, 8)


def test_a_round_as_its_draft_sees_it(registry: CollectorRegistry) -> None:
    metrics = DraftMetrics(registry)
    timings = verdict_pb2.TargetTimings(queue_ns=1_000_000, forward_ns=5_000_000, verify_ns=2_000_000)
    lattice = distribution_pb2.Distribution(lattice=distribution_pb2.Lattice())
    proposals = [target_pb2.Proposal(token_id=7, q=lattice), target_pb2.Proposal(token_id=300)]
    seen = verdict(1, 0, timings=timings, refusal=verdict_pb2.Refusal(offset=1))
    metrics.round(target_pb2.Block(proposals=proposals), seen, 3, 4_000_000, 10_000_000)
    value = registry.get_sample_value
    parts = {p: value("draftproof_round_seconds_sum", {"part": p}) for p in ("draft", "wire", "queue", "verify")}
    assert parts == pytest.approx({"draft": 0.004, "wire": 0.002, "queue": 0.001, "verify": 0.005})
    assert value("draftproof_round_seconds_sum", {"part": "sample"}) == pytest.approx(0.002)
    assert value("draftproof_gamma_sum") == 3
    assert value("draftproof_unused_proposals_total", {"reason": "refused"}) == 1
    for encoding, proposal in (("lattice", proposals[0]), ("none", proposals[1])):
        sent = value("draftproof_wire_bytes_total", {"direction": "sent", "encoding": encoding})
        assert sent == proposal.ByteSize() > 0
    assert value("draftproof_wire_bytes_total", {"direction": "received", "encoding": "verdict"}) == seen.ByteSize()


def test_links_are_counted_up_and_down(registry: CollectorRegistry) -> None:
    metrics = DraftMetrics(registry)
    for up in (True, True, False):
        metrics.link(up)
    assert registry.get_sample_value("draftproof_target_links") == 1


def test_the_watchdog_shows(registry: CollectorRegistry) -> None:
    metrics = target(registry)
    assert registry.get_sample_value("draftproof_watchdog_healthy") == 1
    metrics.health(False)
    assert registry.get_sample_value("draftproof_watchdog_healthy") == 0
    metrics.health(True)
    assert registry.get_sample_value("draftproof_watchdog_healthy") == 1
    assert registry.get_sample_value("draftproof_watchdog_stalls_total") == 1


def test_build_info_names_the_weights(registry: CollectorRegistry) -> None:
    metrics = Recorder(registry)
    metrics.build_info(role="target", version="1.2", model="m", weights_sha256=bytes(range(32)))
    labels = {"role": "target", "version": "1.2", "model": "m", "weights": "0001020304050607"}
    assert registry.get_sample_value("draftproof_build_info", labels) == 1


def test_gaps_count_once_per_token(registry: CollectorRegistry) -> None:
    metrics = OrchestratorMetrics(registry)
    metrics.gap(0.3, 3)
    value = registry.get_sample_value
    assert value("draftproof_cluster_inter_token_seconds_count") == 3
    assert value("draftproof_cluster_inter_token_seconds_sum") == pytest.approx(0.3)


def test_scrapes_and_events_cross(registry: CollectorRegistry) -> None:
    """A scrape runs on its own thread."""
    metrics = target(registry)
    done = threading.Event()

    def scrape() -> None:
        while not done.is_set():
            generate_latest(registry)

    scraper = threading.Thread(target=scrape)
    scraper.start()
    for _ in range(300):
        metrics.verdict(verdict(4, 3), Rule.BLOCK)
    done.set()
    scraper.join()
    assert registry.get_sample_value(f"{SPEC}_num_accepted_tokens_total", {"rule": "block"}) == 900
