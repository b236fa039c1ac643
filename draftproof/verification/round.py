"""One batch of rounds, from logits to verdicts: what the target runs after its forward pass.

p stays as the pipeline made it (float32). Where it meets q, q is scaled to the row's own float64 total instead, so the
law is that of p normalised in float64, the same that a plain target step draws from, and p is never copied whole.

Memory beyond the logits: p, a float32 [N, V], in the logits' own place where they may be overwritten; one more [D, V]
for the D proposals whose q came dense; and some parts of `drafts.chunk_rows` rows, whatever N.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from draftproof.sampling.draft_q import DraftQ, support
from draftproof.sampling.inverse_cdf import inverse_cdf
from draftproof.sampling.params import Rule, SamplingParams
from draftproof.sampling.pipeline import History, distributions
from draftproof.sampling.rng import Draw, Purpose, uniforms
from draftproof.verification.drafts import Drafts, chunk_rows, row_totals
from draftproof.verification.evidence import Seen, committed
from draftproof.verification.intake import Grown
from draftproof.verification.judge import Judgement, Proposed, judge
from draftproof.verification.records import PositionRecord, TokenLogprobs, p_masses, q_masses, token_logprobs
from draftproof.verification.tree_round import Climb, accept_draws, tree_trace
from draftproof.verification.tree_rule import Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundInput:
    """One round of one request.

    Attributes:
        params: sampling settings.
        prompt_ids: original prompt.
        output_ids: committed tokens.
        key: the request's key, 32 bytes.
        block_start: position of the first proposal, counted from the start of the original prompt.
        tokens: proposals as admitted, each in [0, V); may be empty.
        qs: what each was drawn from, same length; empty for a tree, and under the coupled rule, which needs none.
        tree: how the proposals hang together, and their q, where they form a tree.
        trace_top: masses to record per position; 0: all; None: no record.
        logprobs: alternatives to report beside each token; None: no log-probabilities.
        audited: whether to say what the audit wants to know.
    """

    params: SamplingParams
    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    key: bytes
    block_start: int
    tokens: Sequence[int] = ()
    qs: Sequence[DraftQ] = ()
    tree: Grown | None = None
    trace_top: int | None = None
    logprobs: int | None = None
    audited: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """The verdict on one round.

    Attributes:
        accepted: proposals accepted, 0..examined: leading ones, or those on a tree's path.
        next_id: the token after them: residual, bonus or plain target draw.
        examined: proposals that took part.
        overlaps: probabilities whose sum has the expectation of `accepted`. For rules that test one proposal after
            the other, one for each position the test reached (sum_x min(p, q) under the token rule); under the block
            rule, one for each proposal (sum_x min(rho p, q)); under the coupled rule the count itself; in a tree, one
            for each position reached, summed over the proposals tried there.
        losses: total variation introduced at each of the positions reached; empty under a lossless rule.
        finite: False if a row that the verdict rests on holds NaN or infinity; then nothing else is valid.
        logprobs: one per committed token if asked for, else empty.
        records: one per committed token if asked for, else empty.
        seen: for the audit if asked for, under a lossless rule.
        climb: what became of a tree; None for a chain.
    """

    accepted: int
    next_id: int
    examined: int
    overlaps: list[float]
    finite: bool
    losses: list[float] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    records: list[PositionRecord] = field(default_factory=list)
    seen: Seen | None = None
    climb: Climb | None = None

    @property
    def path(self) -> list[int]:
        """The accepted proposals, counted from 1."""
        return list(range(1, self.accepted + 1)) if self.climb is None else self.climb.path

    @property
    def rejected(self) -> bool:
        """Whether the next token is there because what was proposed in its place didn't hold."""
        return self.accepted < self.examined if self.climb is None else self.climb.rejected


@torch.inference_mode()
def verify_rounds(logits: Tensor, rounds: Sequence[RoundInput], owned: bool = False) -> list[RoundResult]:
    """Turns a forward pass over a ragged batch into verdicts. Rounds don't influence each other.

    Args:
        logits: float[N, V], N = sum(len(tokens) + 1): per round the rows after 0..gamma proposals; of a tree, after
            each node.
        rounds: at least one.
        owned: p may take the logits' place; else they are not modified.
    """
    device, vocab = logits.device, logits.shape[1]
    p, totals = _target_law(logits, rounds, owned)
    # The pipeline turns a bad row into NaN throughout.
    finite = totals.isfinite()
    first = _first_rows(rounds)
    with_q = [start + i for start, r in zip(first, rounds, strict=True) for i in range(len(r.qs))]
    drafts = Drafts.collect([q for r in rounds for q in r.qs], with_q, totals, vocab)
    accept_u = _accept_uniforms(rounds)
    proposed = [
        Proposed(r.params, r.key, r.block_start, start, r.tokens, r.tree)
        for r, start in zip(rounds, first, strict=True)
    ]
    judgement = judge(p, totals, drafts, accept_u, proposed)

    draws = [Draw(r.key, r.block_start, k, Purpose.NEXT) for r, k in zip(rounds, judgement.accepted, strict=True)]
    next_u = torch.from_numpy(uniforms(draws))
    ends = [
        start + (k if found is None else (found.path or [0])[-1])
        for start, k, found in zip(first, judgement.accepted, judgement.climbs, strict=True)
    ]
    next_rows = torch.tensor(ends, device=device)
    next_ids = _next_tokens(p, finite, judgement, next_rows, next_u.to(device))
    good = finite[next_rows].tolist()
    results = [
        RoundResult(
            accepted=judgement.accepted[b],
            next_id=next_ids[b],
            examined=len(rounds[b].tokens),
            overlaps=judgement.expected[b] if good[b] else [],
            losses=judgement.losses[b] if good[b] else [],
            finite=good[b],
            climb=judgement.climbs[b],
        )
        for b in range(len(rounds))
    ]
    results = _with_logprobs(results, rounds, first, p, logits)
    results = _with_evidence(results, rounds, first, p, totals, judgement.drafts)
    return _with_traces(results, rounds, first, p, totals, drafts, judgement, accept_u, next_u)


def _target_law(logits: Tensor, rounds: Sequence[RoundInput], owned: bool) -> tuple[Tensor, Tensor]:
    """p and its rows' sums, part by part: what the pipeline needs on the way stays small, and in the cache."""
    params = [r.params for r in rounds for _ in range(len(r.tokens) + 1)]
    histories = _histories(rounds)
    raw_wanted = any(r.logprobs is not None for r in rounds)
    in_place = owned and logits.dtype == torch.float32 and not raw_wanted
    p = logits if in_place else torch.empty_like(logits, dtype=torch.promote_types(logits.dtype, torch.float32))
    totals = torch.empty(len(p), dtype=torch.float64, device=p.device)
    step = 2 * chunk_rows(p.shape[1])
    for start in range(0, len(p), step):
        part = slice(start, start + step)
        found = distributions(logits[part], params[part], histories[part])
        totals[part] = row_totals(found)
        p[part] = found
    return p, totals


def _histories(rounds: Sequence[RoundInput]) -> list[History | None]:
    """At position i the penalties see the prefix and the proposals before it; after a node, those on its path."""
    histories: list[History | None] = []
    for r in rounds:
        if not r.params.needs_history:
            histories += [None] * (len(r.tokens) + 1)
            continue
        tree = Tree(r.tokens, range(len(r.tokens)) if r.tree is None else r.tree.parents)
        for node in range(len(r.tokens) + 1):
            path = [r.tokens[n - 1] for n in tree.path(node)]
            histories.append(History(r.prompt_ids, [*r.output_ids, *path]))
    return histories


def _emitted(asked: RoundInput, result: RoundResult) -> list[int]:
    """The tokens that a round commits."""
    return [*(asked.tokens[node - 1] for node in result.path), result.next_id]


def _first_rows(rounds: Sequence[RoundInput]) -> list[int]:
    first, row = [], 0
    for r in rounds:
        first.append(row)
        row += len(r.tokens) + 1
    return first


def _accept_uniforms(rounds: Sequence[RoundInput]) -> Tensor:
    """u of the test at every row, unused at a round's last row; of a tree, of every node: float64[N], on the CPU."""
    draws: list[Draw] = []
    for r in rounds:
        if r.tree is None:
            draws += [Draw(r.key, r.block_start, i, Purpose.ACCEPT) for i in range(len(r.tokens) + 1)]
        else:
            draws += accept_draws(r.key, r.block_start, r.tokens, r.tree)
    return torch.from_numpy(uniforms(draws))


def _next_tokens(p: Tensor, finite: Tensor, judgement: Judgement, rows: Tensor, u: Tensor) -> list[int]:
    """Draws from the residual, the bonus or the plain target distribution of each round's row."""
    drawn = [token or 0 for token in judgement.next_ids]
    open_ = torch.tensor([b for b, token in enumerate(judgement.next_ids) if token is None], device=p.device).long()
    if not len(open_):
        return drawn
    chosen = judgement.drafts.select(rows[open_], len(p))
    for part in torch.arange(len(open_), device=p.device).split(chunk_rows(p.shape[1])):
        here = rows[open_[part]]
        weights = chosen.select(part, len(open_)).residual(p[here])
        # Rows without numbers still have to pass through; what is drawn there is never used.
        weights[~finite[here]] = 1.0
        for b, token in zip(open_[part].tolist(), inverse_cdf(weights, u[open_[part]]).tolist(), strict=True):
            drawn[b] = token
    return drawn


def _with_logprobs(
    results: Sequence[RoundResult], rounds: Sequence[RoundInput], first: Sequence[int], p: Tensor, logits: Tensor
) -> list[RoundResult]:
    rows: list[int] = []
    tokens: list[int] = []
    alternatives: list[int] = []
    for r, asked, start in zip(results, rounds, first, strict=True):
        if asked.logprobs is not None and r.finite:
            rows += [start + node for node in (0, *r.path)]
            tokens += _emitted(asked, r)
            alternatives += [asked.logprobs] * (r.accepted + 1)
    found: list[TokenLogprobs] = []
    step = chunk_rows(p.shape[1])
    for at in range(0, len(rows), step):
        part = slice(at, at + step)
        found += token_logprobs(p[rows[part]], logits[rows[part]], tokens[part], alternatives[part])
    entries = iter(found)
    return [
        replace(r, logprobs=[next(entries) for _ in range(r.accepted + 1)])
        if asked.logprobs is not None and r.finite
        else r
        for r, asked in zip(results, rounds, strict=True)
    ]


def _with_evidence(
    results: Sequence[RoundResult],
    rounds: Sequence[RoundInput],
    first: Sequence[int],
    p: Tensor,
    totals: Tensor,
    drafts: Drafts,
) -> list[RoundResult]:
    """Adds what the audit wants to know; `drafts` holds q as each rule took it, which for lossy ones isn't q."""
    asked = [b for b, r in enumerate(rounds) if r.audited and results[b].finite and not r.params.rule.lossy]
    if not asked:
        return list(results)
    tokens = [_emitted(rounds[b], results[b]) for b in asked]
    rows = [[first[b] + node for node in (0, *results[b].path)] for b in asked]
    drafted = [min(len(rounds[b].qs), len(found)) for b, found in zip(asked, tokens, strict=True)]
    seen = committed(p, totals, drafts, rows, tokens, drafted)
    found = dict(zip(asked, seen, strict=True))
    return [replace(r, seen=found[b]) if b in found else r for b, r in enumerate(results)]


def _with_traces(
    results: Sequence[RoundResult],
    rounds: Sequence[RoundInput],
    first: Sequence[int],
    p: Tensor,
    totals: Tensor,
    drafts: Drafts,
    judgement: Judgement,
    accept_u: Tensor,
    next_u: Tensor,
) -> list[RoundResult]:
    if all(asked.trace_top is None for asked in rounds):
        return list(results)
    tokens = torch.tensor([t for r in rounds for t in (*r.tokens, 0)], dtype=torch.int64, device=p.device)
    p_x = p.gather(1, tokens[:, None])[:, 0].double() / totals
    seen = [column.tolist() for column in (p_x, drafts.at(tokens) / totals, accept_u, judgement.chances)]
    traced = list(results)
    for b, (r, asked, start) in enumerate(zip(results, rounds, first, strict=True)):
        if asked.trace_top is None or not r.finite:
            continue
        if r.climb is not None and asked.tree is not None:
            rows = slice(start, start + r.examined + 1)
            grown, place = (asked.tokens, asked.tree), (asked.block_start, asked.trace_top)
            records = tree_trace(r.climb, *grown, p[rows], totals[rows], accept_u[rows], *place)
        else:
            records = _trace(asked, r, p[start:], [column[start:] for column in seen], float(next_u[b]))
        traced[b] = replace(r, records=records)
    return traced


def _trace(
    asked: RoundInput, result: RoundResult, p: Tensor, seen: Sequence[Sequence[float]], draw_u: float
) -> list[PositionRecord]:
    """Records of one round; all rows begin at its first."""
    top = asked.trace_top or 0
    coupled = asked.params.rule is Rule.COUPLED
    p_x, q_x, accept_u, chances = seen
    records = []
    for i in range(result.accepted + 1):
        proposed, accepted = i < len(asked.tokens), i < result.accepted
        tested = proposed and not coupled
        records.append(
            PositionRecord(
                position=asked.block_start + i,
                block_start=asked.block_start,
                proposed_id=asked.tokens[i] if proposed else None,
                accepted=accepted,
                accept_uniform=accept_u[i] if tested else None,
                accept_probability=chances[i] if tested else None,
                draw_uniform=None if accepted or coupled else draw_u,
                p_proposed=p_x[i] if proposed else 0.0,
                q_proposed=q_x[i] if tested else 0.0,
                p=p_masses(p[i], top),
                q=q_masses(*support(asked.qs[i]), top, p.shape[1]) if tested else None,
            )
        )
    return records
