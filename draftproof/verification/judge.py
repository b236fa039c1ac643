"""Which proposals of a batch stay, each round by its own rule, and what q the token after them is drawn against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from draftproof.sampling.params import Rule, SamplingParams
from draftproof.verification import block_rule, coupled_rule, lossy_rule, token_rule
from draftproof.verification.drafts import Drafts
from draftproof.verification.intake import Grown
from draftproof.verification.tree_round import Climb, climb


@dataclass(frozen=True, slots=True)
class Proposed:
    """The part of a round that judging takes.

    Attributes:
        params: name the rule.
        key: the request's key.
        block_start: position of the first proposal.
        first: its first row of p.
        tokens: proposals.
        tree: how they hang together where they form one.
    """

    params: SamplingParams
    key: bytes
    block_start: int
    first: int
    tokens: Sequence[int]
    tree: Grown | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """What was decided.

    Attributes:
        accepted: leading proposals that stay, per round; of a tree, those on the path.
        next_ids: the token after them where the rule itself draws it (coupled, tree), else None.
        drafts: what (p - q)+ is taken against, by row of p.
        expected: per round the probabilities whose sum has the expectation of `accepted`.
        losses: per round the total variation introduced at each position the test reached; empty if lossless.
        chances: float64[N], what the uniform of each proposal was compared with; NaN where there is none.
        climbs: what became of each tree; None for the other rounds.
    """

    accepted: list[int]
    next_ids: list[int | None]
    drafts: Drafts
    expected: list[list[float]]
    losses: list[list[float]]
    chances: Tensor
    climbs: list[Climb | None]


def judge(p: Tensor, totals: Tensor, drafts: Drafts, u: Tensor, rounds: Sequence[Proposed]) -> Judgement:
    """Judges every round.

    A row of p without numbers ends its round before the proposal there: it depends on what came before alone, so it is
    a stopping rule of the legal kind. The verdict then rests on that row only if everything before it stays.

    Args:
        p: float[N, V], per round the rows after 0..gamma proposals; of a tree, after each node.
        totals: float64[N], their sums, not finite where a row isn't.
        drafts: q of every proposal but those of coupled rounds and of trees, each scaled to the total of its row of p.
        u: float64[N] on the CPU, the test's number of every row, unused at a round's last; of a tree, of every node.
        rounds: at least one.
    """
    return _Judge(p, totals, drafts, u, rounds).judge()


class _Judge:
    """State of one call. Small tensors, of one number a proposal, live on the CPU."""

    def __init__(self, p: Tensor, totals: Tensor, drafts: Drafts, u: Tensor, rounds: Sequence[Proposed]) -> None:
        self.p, self.totals, self.u, self.rounds = p, totals, u, rounds
        usable = totals.isfinite()
        self.good = usable
        tokens = torch.tensor([t for r in rounds for t in (*r.tokens, 0)], dtype=torch.int64, device=p.device)
        self.p_x = torch.where(usable, p.gather(1, tokens[:, None])[:, 0].double(), 0.0).cpu()
        self.drafts = drafts
        self.q_x = drafts.at(tokens).cpu()
        self.tokens = tokens
        first = torch.tensor([r.first for r in rounds])
        lengths = torch.tensor([0 if r.tree else len(r.tokens) for r in rounds])
        steps = torch.arange(int(lengths.max()))
        # Padding repeats the last row; every rule ignores it.
        self.rows = (first[:, None] + steps).clamp_(max=len(u) - 1)
        reach = (usable.cpu()[self.rows] | (steps >= lengths[:, None])).long().cumprod(dim=1).sum(dim=1)
        self.lengths = torch.minimum(lengths, reach)
        self.by_rule: dict[Rule, list[int]] = {}
        for b, r in enumerate(rounds):
            if r.tree is None:
                self.by_rule.setdefault(r.params.rule, []).append(b)

    def judge(self) -> Judgement:
        count = len(self.rounds)
        accepted = [0] * count
        next_ids: list[int | None] = [None] * count
        expected: list[list[float]] = [[] for _ in range(count)]
        losses: list[list[float]] = [[] for _ in range(count)]
        self.chances = torch.full_like(self.u, torch.nan)
        ratios = self._stretch()
        self._keep()
        for rule, members in self.by_rule.items():
            if rule is Rule.COUPLED:
                chains = [
                    coupled_rule.Chain(r.key, r.block_start, r.first, r.tokens)
                    for r in (self.rounds[b] for b in members)
                ]
                lengths, drawn = coupled_rule.verify(self.p, self.good, chains)
                for b, token in zip(members, drawn, strict=True):
                    next_ids[b] = token
            elif rule is Rule.BLOCK:
                assert ratios is not None
                lengths = self._block(members, ratios, expected)
            else:
                lengths = self._one_by_one(members, rule)
            for b, length in zip(members, lengths, strict=True):
                accepted[b] = length
        self._expect(accepted, expected, losses)
        climbs = [None if r.tree is None else self._climb(r, r.tree) for r in self.rounds]
        for b, found in enumerate(climbs):
            if found is not None:
                accepted[b], next_ids[b], expected[b] = len(found.path), found.next_id, found.overlaps
        return Judgement(accepted, next_ids, self.drafts, expected, losses, self.chances, climbs)

    def _climb(self, asked: Proposed, tree: Grown) -> Climb:
        rows = slice(asked.first, asked.first + len(asked.tokens) + 1)
        return climb(self.p[rows], asked.key, asked.block_start, asked.tokens, tree, self.u[rows])

    def _stretch(self) -> Tensor | None:
        """Puts q / rho in place of q in the rows of block rounds: rho float64[N], 1 elsewhere."""
        members = self.by_rule.get(Rule.BLOCK)
        if members is None:
            return None
        rows, lengths = self.rows[members], self.lengths[members]
        ratios = torch.ones_like(self.u)
        height = rows.shape[1]
        inside = torch.arange(height) < lengths[:, None]
        rho = block_rule.joint_ratios(self.p_x[rows], self.q_x[rows], lengths)[:, :height]
        ratios[rows[inside]] = rho[inside]
        self.drafts = self.drafts.rescaled(block_rule.stretch(ratios).to(self.p.device))
        return ratios

    def _keep(self) -> None:
        """Puts what lossy rules keep in place of q in their rounds' rows."""
        lossy = [b for b, r in enumerate(self.rounds) if r.params.rule.lossy]
        if not lossy:
            return
        ratios = torch.full_like(self.totals, lossy_rule.UNLIMITED)
        floors = torch.zeros_like(self.totals)
        for b in lossy:
            asked = self.rounds[b]
            assert asked.params.lenience is not None
            at = slice(asked.first, asked.first + len(asked.tokens))
            scaled = self.p[at].double() / self.totals[at, None]
            ratios[at], low = lossy_rule.limits(asked.params.rule, asked.params.lenience, scaled)
            floors[at] = low * self.totals[at]
        self.drafts = self.drafts.kept(self.p, ratios, floors)

    def _block(self, members: list[int], ratios: Tensor, expected: list[list[float]]) -> list[int]:
        rows, lengths = self.rows[members], self.lengths[members]
        inside = torch.arange(rows.shape[1]) < lengths[:, None]
        proposed = rows[inside]
        overlaps = torch.zeros(rows.shape, dtype=torch.float64)
        overlaps[inside] = self._overlaps(proposed) * ratios[proposed]
        rho = block_rule.joint_ratios(self.p_x[rows], self.q_x[rows], lengths)
        numerators, denominators = block_rule.tests(rho, overlaps, lengths)
        self.chances[proposed] = (numerators / denominators.clamp(min=torch.finfo(torch.float64).tiny))[inside]
        for b, row, length in zip(members, overlaps.tolist(), lengths.tolist(), strict=True):
            expected[b] = row[:length]
        found: list[int] = block_rule.accepted_lengths(rho, overlaps, self.u[rows], lengths).tolist()
        return found

    def _one_by_one(self, members: list[int], rule: Rule) -> list[int]:
        """The token rule and the lossy ones, which keep another mass than min(p, q)."""
        rows, lengths = self.rows[members], self.lengths[members]
        mass = self.drafts.at(self.tokens).cpu() if rule.lossy else self.p_x
        self.chances[rows] = token_rule.accept_probability(mass[rows], self.q_x[rows])
        found: list[int] = token_rule.accepted_lengths(mass[rows], self.q_x[rows], self.u[rows], lengths).tolist()
        return found

    def _expect(self, accepted: list[int], expected: list[list[float]], losses: list[list[float]]) -> None:
        """Fills in the positions that rules which test one by one reached."""
        places: list[tuple[int, int]] = []
        for b, asked in enumerate(self.rounds):
            if asked.params.rule is Rule.COUPLED:
                expected[b] = [1.0] * accepted[b]
            elif asked.params.rule is not Rule.BLOCK and asked.tree is None:
                reached = min(accepted[b] + 1, int(self.lengths[b]))
                places += [(b, asked.first + i) for i in range(reached)]
        rows = torch.tensor([row for _, row in places], dtype=torch.int64)
        overlaps = self._overlaps(rows).tolist()
        kept = self._kept(rows) if any(self.rounds[b].params.rule.lossy for b, _ in places) else overlaps
        for (b, _), overlap, mass in zip(places, overlaps, kept, strict=True):
            expected[b].append(mass if self.rounds[b].params.rule.lossy else overlap)
            if self.rounds[b].params.rule.lossy:
                losses[b].append(max(0.0, mass - overlap))

    def _kept(self, rows: Tensor) -> list[float]:
        rows = rows.to(self.p.device)
        found: list[float] = (self.drafts.totals(len(self.p))[rows] / self.totals[rows]).tolist()
        return found

    def _overlaps(self, rows: Tensor) -> Tensor:
        """sum_x min(p, q) of ascending rows, on the CPU; q as it stands in `drafts`."""
        rows = rows.to(self.p.device)
        return (self.drafts.expected_acceptance(self.p, rows) / self.totals[rows]).cpu()
