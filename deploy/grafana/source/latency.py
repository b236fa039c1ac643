"""Where does the time go, and what is full?"""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard, Row

from deploy.grafana.source.parts import GREEN, RED, YELLOW, About, Query, lines, new, number
from deploy.grafana.source.promql import gauge, mean, quantile, rate, series

_FIRST, _BETWEEN = "cluster_time_to_first_token_seconds", "cluster_inter_token_seconds"
_WHOLE = "cluster_request_seconds"


def dashboard() -> Dashboard:
    """The dashboard *Latency*."""
    board = new(
        "Draftproof / Latency",
        "draftproof-latency",
        "What clients wait for, where a round's time goes, and which queue or cache is full.",
    )
    _now(board)
    _clients(board)
    _rounds(board)
    _capacity(board)
    return board


def _quantiles(histogram: str) -> list[Query]:
    return [Query(quantile(q, histogram), f"p{round(100 * q)}") for q in (0.5, 0.9, 0.99)]


def _now(board: Dashboard) -> None:
    small = {"span": 6, "height": 5}
    board.with_row(Row("Now")).with_panel(
        number(
            About(
                title="Time to first token, median",
                what="From a request's arrival at the orchestrator to its first token.",
                good="the prompt's prefill and one round. Far more is waiting for admission.",
                unit="s",
                **small,
            ),
            Query(quantile(0.5, _FIRST), "p50"),
            [(None, GREEN), (1, YELLOW), (5, RED)],
        )
    ).with_panel(
        number(
            About(
                title="Time between tokens, median",
                what="The gap between two rounds, divided by the tokens that end it.",
                good="a target step divided by the tokens per target step.",
                unit="s",
                **small,
            ),
            Query(quantile(0.5, _BETWEEN), "p50"),
            [(None, GREEN), (0.2, YELLOW), (1, RED)],
        )
    ).with_panel(
        number(
            About(
                title="Tokens per second",
                what="Tokens committed by all targets.",
                good="as high as the load asks for; it falls before the targets are full where drafts are too slow.",
                unit="cps",
                **small,
            ),
            Query(rate("committed_tokens_total"), "tokens/s"),
        )
    ).with_panel(
        number(
            About(
                title="Requests",
                what="Requests admitted by the orchestrator now.",
                good="below the targets' slots; above, requests wait.",
                unit="none",
                **small,
            ),
            Query(gauge("cluster_running_requests"), "running"),
        )
    )


def _clients(board: Dashboard) -> None:
    board.with_row(Row("What clients wait for")).with_panel(
        lines(
            About(
                title="Time to first token",
                what="From a request's arrival at the orchestrator to its first token.",
                good="p99 within a few times p50. A rising p99 alone is long prompts; all rising is a queue.",
                unit="s",
                span=8,
            ),
            *_quantiles(_FIRST),
        )
    ).with_panel(
        lines(
            About(
                title="Time between tokens",
                what="The gap between two rounds, divided by the tokens that end it, once per token.",
                good="steady. p99 shows stalls: prefill of others, fallbacks, a lost link.",
                unit="s",
                span=8,
            ),
            *_quantiles(_BETWEEN),
        )
    ).with_panel(
        lines(
            About(
                title="Whole requests",
                what="From a request's arrival to its end.",
                good="moves with the length of the texts; compare with time between tokens before worrying.",
                unit="s",
                span=8,
            ),
            *_quantiles(_WHOLE),
        )
    ).with_panel(
        lines(
            About(
                title="Requests by outcome",
                what="Requests ended per second; OK, or the reason of their error.",
                good="OK and some CANCELLED. OVERLOADED: the queue is full, add targets.",
                unit="reqps",
            ),
            Query(f"{rate('cluster_requests_total', 'outcome')} > 0", "{{outcome}}"),
            stacked=True,
        )
    ).with_panel(
        lines(
            About(
                title="Queue",
                what="Requests that wait for admission at the orchestrator, and sessions that wait for a KV slot on"
                " the targets.",
                good="0 most of the time. Steady growth ends in OVERLOADED at queue_limit; an alert comes at 80 %"
                " of it.",
                unit="none",
            ),
            Query(gauge("cluster_waiting_requests"), "waiting for admission"),
            Query(gauge("waiting_sessions", "instance"), "waiting for a slot, {{instance}}"),
        )
    )


def _rounds(board: Dashboard) -> None:
    board.with_row(Row("A round")).with_panel(
        lines(
            About(
                title="Where a round's time goes, mean",
                what="As the drafts see it: drafting, wire (round trip less the target's share), queue on the target,"
                " verify (its forward pass), sample (everything after the logits).",
                good="verify is the largest part. Mostly draft: the drafter is too slow for its gamma. Mostly wire:"
                " the distance; a larger gamma pays there. Mostly queue: the target is full.",
                unit="s",
            ),
            Query(mean("round_seconds", "part"), "{{part}}"),
            stacked=True,
        )
    ).with_panel(
        lines(
            About(
                title="Where a round's time goes, p95",
                what="The same parts at their 95th percentile (percentiles don't add up).",
                good="each within a few times its mean.",
                unit="s",
            ),
            Query(quantile(0.95, "round_seconds", "part"), "{{part}}"),
        )
    ).with_panel(
        lines(
            About(
                title="Target: forward pass and queue",
                what="Duration of forward passes, and how long a round waits for its own to begin.",
                good="a queue below one forward pass: that is a round that just missed one.",
                unit="s",
            ),
            Query(quantile(0.5, "forward_seconds"), "forward p50"),
            Query(quantile(0.99, "forward_seconds"), "forward p99"),
            Query(quantile(0.5, "round_queue_seconds"), "queue p50"),
            Query(quantile(0.99, "round_queue_seconds"), "queue p99"),
        )
    ).with_panel(
        lines(
            About(
                title="Wire bytes per committed token",
                what="Serialised proposals by q encoding, and verdicts, per committed token; framing and TLS left out.",
                good="a few hundred bytes to a few thousand with lattice q. Dense q costs 4 bytes times the"
                " vocabulary: hundreds of kilobytes.",
                unit="bytes",
            ),
            Query(
                f"{rate('wire_bytes_total', 'direction', 'encoding')} / on() group_left()"
                f" ({rate('committed_tokens_total')} > 0)",
                "{{direction}}, {{encoding}}",
            ),
            stacked=True,
        )
    )


def _capacity(board: Dashboard) -> None:
    board.with_row(Row("Capacity")).with_panel(
        lines(
            About(
                title="Batch occupancy",
                what="Mean rows of a forward pass and sessions that hold a slot, both of all slots.",
                good="slots nearly all in use under load, and batches that follow. Slots full but small batches:"
                " sessions wait for their drafts.",
                unit="percentunit",
                span=8,
            ),
            Query(
                f"{mean('forward_rows', 'instance')} / on(instance) {gauge('kv_slots', 'instance')}",
                "rows, {{instance}}",
            ),
            Query(
                f"{gauge('active_sessions', 'instance')} / on(instance) {gauge('kv_slots', 'instance')}",
                "slots, {{instance}}",
            ),
            top=1,
        )
    ).with_panel(
        lines(
            About(
                title="KV use",
                what="Tokens cached of the tokens the cache holds.",
                good="below 90 %. Full slots with little KV use: more slots with a shorter context serve more.",
                unit="percentunit",
                span=8,
            ),
            Query(
                f"{gauge('kv_cached_tokens', 'instance')} / on(instance) {gauge('kv_capacity_tokens', 'instance')}",
                "{{instance}}",
            ),
            top=1,
        )
    ).with_panel(
        lines(
            About(
                title="Tokens per forward pass",
                what="Mean tokens fed in a forward pass: proposals of all sessions and pieces of prompts.",
                good="grows with load; the growth is what batching saves.",
                unit="none",
                span=8,
            ),
            Query(mean("forward_tokens", "instance"), "{{instance}}"),
        )
    ).with_panel(
        lines(
            About(
                title="Workers",
                what="Workers of the cluster by role and state.",
                good="as many ready as you asked for. suspect: it doesn't answer; starting for long: it can't load.",
                unit="none",
                span=8,
            ),
            Query(gauge("cluster_workers", "role", "state"), "{{role}} {{state}}"),
        )
    ).with_panel(
        lines(
            About(
                title="Links and requests of drafts",
                what="Streams to targets that are up, and requests that run, by draft.",
                good="every draft has a link to each target it serves; requests are spread evenly.",
                unit="none",
                span=8,
            ),
            Query(gauge("target_links", "instance"), "links, {{instance}}"),
            Query(gauge("draft_requests", "instance"), "requests, {{instance}}"),
        )
    ).with_panel(
        lines(
            About(
                title="Watchdog",
                what="1 while a target's runnable work makes progress, 0 after a stall.",
                good="1 everywhere; at 0 a target says NOT_SERVING and its requests go on elsewhere.",
                unit="none",
                span=8,
            ),
            Query(series("watchdog_healthy"), "{{instance}}"),
            top=1,
        )
    )
