"""Does drafting pay, and is it honest?"""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard, Row

from deploy.grafana.source.parts import GREEN, RED, YELLOW, About, Query, bars, lines, new, number
from deploy.grafana.source.promql import mean, quantile, rate, ratio, series

_ACCEPTED = "spec_decode_num_accepted_tokens"
_DRAFTED = "spec_decode_num_draft_tokens"
_ONE_DIGIT, _TWO_DIGITS = "=~[0-9]", "=~[0-9]{2}"


def dashboard() -> Dashboard:
    """The dashboard *Acceptance*."""
    board = new(
        "Draftproof / Acceptance",
        "draftproof-acceptance",
        "What drafting brings: acceptance pooled and by position, tokens per target step, gamma, and what went wrong.",
    )
    _overview(board)
    _positions(board)
    _drafts(board)
    _audit(board)
    _trouble(board)
    return board


def _overview(board: Dashboard) -> None:
    per_step = ratio(rate("committed_tokens_total"), rate("rounds_total"))
    pooled = ratio(rate(f"{_ACCEPTED}_total"), rate(f"{_DRAFTED}_total"))
    board.with_row(Row("Now")).with_panel(
        number(
            About(
                title="Acceptance rate",
                what="Proposals accepted of proposals examined, all targets pooled: sums first, then the quotient.",
                good="steady, 0.5 to 0.9 for a draft that fits. It says how well the draft fits, not whether drafting"
                " pays: for that see tokens per target step.",
                unit="percentunit",
                span=6,
                height=5,
            ),
            Query(pooled, "rate"),
            [(None, RED), (0.2, YELLOW), (0.4, GREEN)],
        )
    ).with_panel(
        number(
            About(
                title="Tokens per target step",
                what="Committed tokens per verified round, the number to rank drafts and gammas by.",
                good="well above 1; at 1 the draft brings nothing, and gamma control should have turned it off.",
                unit="none",
                span=6,
                height=5,
            ),
            Query(per_step, "tokens"),
            [(None, YELLOW), (1.3, GREEN)],
        )
    ).with_panel(
        number(
            About(
                title="γ in use",
                what="Mean number of proposals asked for per round.",
                good="settles within a minute of a change in load; 0 means that drafting is off.",
                unit="none",
                span=6,
                height=5,
            ),
            Query(mean("gamma"), "γ"),
        )
    ).with_panel(
        number(
            About(
                title="Fallbacks",
                what="Times per second that requests went on elsewhere or without a draft.",
                good="0 but for restarts and upgrades.",
                unit="cps",
                span=6,
                height=5,
            ),
            Query(rate("cluster_fallbacks_total"), "fallbacks"),
            [(None, GREEN), (0.1, YELLOW), (1, RED)],
        )
    )
    board.with_panel(
        lines(
            About(
                title="Acceptance rate over time",
                what="Pooled, by target, and the expectation Σ min(p, q) per proposal, which is the same thing with"
                " less noise.",
                good="measured and expected lie on each other. A gap that stays means that a draft draws from another"
                " distribution than it sends: look at refused proposals.",
                unit="percentunit",
            ),
            Query(pooled, "pooled"),
            Query(
                ratio(rate("spec_decode_expected_accepted_tokens_total"), rate(f"{_DRAFTED}_total")), "expected, pooled"
            ),
            Query(ratio(rate(f"{_ACCEPTED}_total", "instance"), rate(f"{_DRAFTED}_total", "instance")), "{{instance}}"),
            top=1,
        )
    ).with_panel(
        lines(
            About(
                title="Tokens per target step, by target",
                what="Committed tokens per verified round.",
                good="the same on all targets; one that lags behind is served by worse drafts.",
                unit="none",
            ),
            Query(per_step, "pooled"),
            Query(ratio(rate("committed_tokens_total", "instance"), rate("rounds_total", "instance")), "{{instance}}"),
        )
    )


def _positions(board: Dashboard) -> None:
    def by_position(below: str) -> list[Query]:
        return [
            Query(
                ratio(
                    rate(f"{_ACCEPTED}_per_pos_total", "position", position=digits),
                    rate(f"spec_decode_num_{below}_tokens_per_pos_total", "position", position=digits),
                ),
                "{{position}}",
            )
            for digits in (_ONE_DIGIT, _TWO_DIGITS)
        ]

    board.with_row(Row("By position in the block")).with_panel(
        bars(
            About(
                height=10,
                title="Acceptance by position",
                what="Of all proposals at an offset, the share that was accepted.",
                good="falls slowly. Where it nears 0, longer blocks are wasted: a smaller gamma would do.",
                unit="percentunit",
            ),
            *by_position("draft"),
        )
    ).with_panel(
        bars(
            About(
                height=10,
                title="Acceptance by position, given all before it",
                what="Of the proposals whose predecessors in the block were all accepted, the share that was accepted.",
                good="level, or rising a little. A drop after the first position is a draft that loses its context"
                " (its KV cache, or penalties applied once per block).",
                unit="percentunit",
            ),
            *by_position("tested"),
        )
    )


def _drafts(board: Dashboard) -> None:
    drafted = rate("cluster_draft_tokens_total", "draft", draft="!=none")
    rejected = f"{rate(f'{_DRAFTED}_total')} - {rate(f'{_ACCEPTED}_total')}"
    board.with_row(Row("By draft")).with_panel(
        lines(
            About(
                title="Acceptance rate by draft",
                what="The orchestrator's view, from the verdicts that passed through it.",
                good="drafts of one model lie together; one that falls away has other weights or a broken drafter.",
                unit="percentunit",
            ),
            Query(ratio(rate("cluster_accepted_tokens_total", "draft", draft="!=none"), drafted), "{{draft}}"),
            top=1,
        )
    ).with_panel(
        lines(
            About(
                title="Tokens per target step by draft",
                what="Committed tokens per round of each draft; none is target-only.",
                good="every draft above none, which is 1.",
                unit="none",
            ),
            Query(
                ratio(rate("cluster_committed_tokens_total", "draft"), rate("cluster_rounds_total", "draft")),
                "{{draft}}",
            ),
        )
    ).with_panel(
        lines(
            About(
                title="γ in use by draft",
                what="Mean of the proposals asked for per round, and the 90th percentile of all.",
                good="moves with acceptance and round times, then settles. Swinging between 0 and more is a draft at"
                " the edge of paying.",
                unit="none",
            ),
            Query(mean("gamma", "instance"), "{{instance}}"),
            Query(quantile(0.9, "gamma"), "90 % of rounds, all drafts"),
        )
    ).with_panel(
        lines(
            About(
                title="Committed tokens by source",
                what="Tokens per second: accepted proposals, resampled after a rejection, bonus after a whole block,"
                " target alone.",
                good="accepted is the largest share.",
                unit="cps",
            ),
            Query(rate("committed_tokens_total", "source"), "{{source}}"),
            stacked=True,
        )
    ).with_panel(
        lines(
            About(
                title="Drafts thrown away",
                what="Proposals per second that brought nothing: rejected (or behind a rejection), refused, or cut off"
                " by a stop.",
                good="rejected well below the accepted tokens; refused 0.",
                unit="cps",
            ),
            Query(rejected, "rejected"),
            Query(rate("unused_proposals_total", "reason"), "{{reason}}"),
            stacked=True,
        )
    ).with_panel(
        lines(
            About(
                title="Time in draft models",
                what="Seconds of forward passes per second, by draft.",
                good="below 1: at 1 the drafter is what requests wait for.",
                unit="percentunit",
            ),
            Query(rate("draft_forward_seconds_total", "instance"), "{{instance}}"),
        )
    )


def _audit(board: Dashboard) -> None:
    board.with_row(Row("Audit")).with_panel(
        lines(
            About(
                title="Evidence against a draft or the target",
                what="Natural logarithm of the largest e-value of each test, over drafters: betting on proposals that"
                " don't come from q, on acceptance other than p and q say, on output that doesn't come from p.",
                good="below 2, most of the time below 0. At 18 the audit alarms and takes no more proposals from that"
                " draft; docs/audit.md says what to do.",
                unit="none",
            ),
            Query(f"max by (test) ({series('audit_log_wealth')})", "{{test}}"),
        )
    ).with_panel(
        lines(
            About(
                title="Alarms and quarantines",
                what="Per second: tests that failed, and drafters whose proposals are taken no longer.",
                good="0. A blip is a draft or a target that isn't what it says; it counts until the target starts"
                " again.",
                unit="cps",
            ),
            Query(rate("audit_alarms_total", "test", "drafter"), "{{test}} {{drafter}}"),
            Query(rate("audit_quarantines_total", "drafter"), "quarantined {{drafter}}"),
        )
    ).with_panel(
        lines(
            About(
                title="Tokens audited",
                what="Committed tokens per second that the audit examined, by drafter: about two rounds of a pass. And"
                " all that it may not use: those of seeded and of resumed requests.",
                good="never 0 while there is traffic; a draft whose sessions are all unaudited can't be caught.",
                unit="cps",
            ),
            Query(rate("audited_tokens_total", "drafter"), "{{drafter}}"),
            Query(rate("unaudited_tokens_total"), "unaudited"),
        )
    )


def _trouble(board: Dashboard) -> None:
    board.with_row(Row("Trouble")).with_panel(
        lines(
            About(
                title="Fallbacks by reason",
                what="Times per second that a request went on elsewhere, or without a draft.",
                good="0 but for restarts. draft_slow without a dead draft: raise the round timeout or look at the"
                " draft's load; no_draft: too few drafts are ready.",
                unit="cps",
            ),
            Query(rate("cluster_fallbacks_total", "reason"), "{{reason}}"),
        )
    ).with_panel(
        lines(
            About(
                title="Refused proposals",
                what="Positions per second not verified as sent: malformed q, draws that q and the request's key"
                " don't give, float q without mass at the token; and rounds that are no longer lossless.",
                good="0. Draw mismatches cost speed alone; not lossless means that a draft lied and the text may be"
                " bent: take that draft out.",
                unit="cps",
            ),
            Query(rate("refused_proposals_total", "kind"), "{{kind}}"),
            Query(rate("not_lossless_rounds_total"), "not lossless"),
        )
    ).with_panel(
        lines(
            About(
                title="Stale frames and evictions",
                what="Per second: frames of sessions, epochs or rounds that are over, and sessions that lost their"
                " KV slot to one that waited.",
                good="close to 0. Stale frames follow reconnections; steady evictions ask for more slots.",
                unit="cps",
            ),
            Query(rate("stale_frames_total", "what"), "stale {{what}}"),
            Query(rate("evicted_sessions_total"), "evicted"),
        )
    ).with_panel(
        lines(
            About(
                title="Failed sessions",
                what="Sessions per second that targets failed, by the four most frequent reasons; numerics are NaN or"
                " infinity in its logits; drafting failures are blocks cut short by a broken drafter.",
                good="0, but for PREFIX_LOST with evictions and DRAINING in upgrades.",
                unit="cps",
            ),
            Query(f"topk(4, {rate('failed_sessions_total', 'reason')})", "{{reason}}"),
            Query(rate("numerics_errors_total"), "numerics"),
            Query(rate("drafting_failures_total"), "drafting"),
        )
    )
