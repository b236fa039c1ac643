"""What the audit gets to see of a proposal and of a judged round; docs/audit.md says what it makes of that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftproof.audit.transform import Interval, interval
from draftproof.sampling.draft_q import Dense, DraftQ, Lattice, OneHot, Sparse
from draftproof.verification.drafts import Drafts, chunk_rows


@dataclass(frozen=True, slots=True)
class Seen:
    """Of one round under a lossless rule.

    Attributes:
        output: of every committed token under p.
        excess: of every committed token that a proposal was made for: whether p(x) > q(x) there, minus the probability
            of that under p; q is q / rho under the block rule. Empty under a rule without q.
    """

    output: list[Interval]
    excess: list[float]


def proposed(q: DraftQ, token_id: int) -> Interval:
    """Where a token lies under the q it was sent with: the whole of [0, 1] for a one-hot q, the end for no mass."""
    match q:
        case Lattice(bits, ids, counts):
            return interval(counts, _at(ids, counts, token_id), 2**bits)
        case Sparse(ids, masses):
            return interval(masses, _at(ids, masses, token_id), float(masses.sum(dtype=np.float64)))
        case Dense(masses):
            mass = float(masses[token_id]) if 0 <= token_id < len(masses) else 0.0
            return interval(masses, mass, float(masses.sum(dtype=np.float64)))
        case OneHot(only):
            return Interval(0.0, 1.0) if token_id == only else Interval(1.0, 0.0)


def committed(
    p: Tensor, totals: Tensor, drafts: Drafts, first: Sequence[int], tokens: Sequence[Sequence[int]], drafted: list[int]
) -> list[Seen]:
    """What some rounds of a batch committed.

    Args:
        p: float[N, V].
        totals: float64[N], their sums.
        drafts: q of every proposal as its rule takes it, scaled to `totals`.
        first: each round's first row, ascending.
        tokens: what each committed, one token for each row from its first on.
        drafted: for how many of them there was a q.
    """
    rows = [start + i for start, round_ in zip(first, tokens, strict=True) for i in range(len(round_))]
    at = torch.tensor(rows, dtype=torch.int64, device=p.device)
    chosen = torch.tensor([token for round_ in tokens for token in round_], dtype=torch.int64, device=p.device)
    mass = p[at, chosen]
    above, equal = _ranked(p, at, mass)
    scale = totals[at]
    intervals = zip((above / scale).tolist(), (equal * mass.double() / scale).tolist(), strict=True)
    output = [Interval(low, width) if width > 0.0 else Interval(1.0, 0.0) for low, width in intervals]
    surplus = _excess(p, totals, drafts, at, chosen, mass).tolist() if any(drafted) else [0.0] * len(rows)
    seen, done = [], 0
    for round_, count in zip(tokens, drafted, strict=True):
        seen.append(Seen(output[done : done + len(round_)], surplus[done : done + count]))
        done += len(round_)
    return seen


def _at(ids: NDArray[np.int64], masses: NDArray[np.generic], token_id: int) -> float:
    index = int(np.searchsorted(ids, token_id))
    return float(masses[index]) if index < len(ids) and ids[index] == token_id else 0.0


def _ranked(p: Tensor, rows: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
    """Of one token per row: the sum of all larger masses, and how many tokens have its own. Both float64[R]."""
    if p.device.type != "cpu":
        return ranked_together(p, rows, mass)
    # Few tokens are as likely as one that was drawn: numpy finds them several times as fast as torch masks a row.
    above, equal = np.zeros(len(rows)), np.zeros(len(rows))
    for i, (row, x) in enumerate(zip(rows.tolist(), mass.numpy(), strict=True)):
        masses = p[row].numpy()
        least = masses[np.flatnonzero(masses >= x)] if x > 0 else masses[:0]
        same = int(np.count_nonzero(least == x))
        above[i] = least.sum(dtype=np.float64) - same * np.float64(x)
        equal[i] = same
    return torch.from_numpy(above), torch.from_numpy(equal)


def ranked_together(p: Tensor, rows: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
    """The same for accelerators: a few operations for all rows."""
    above, equal = [], []
    for part in torch.arange(len(rows), device=p.device).split(16 * chunk_rows(p.shape[1])):
        masses, x = p[rows[part]], mass[part, None]
        above.append(torch.where(masses > x, masses, 0.0).sum(dim=-1, dtype=torch.float64))
        equal.append((masses == x).sum(dim=-1).double())
    return torch.cat(above), torch.cat(equal)


def _excess(p: Tensor, totals: Tensor, drafts: Drafts, rows: Tensor, tokens: Tensor, mass: Tensor) -> Tensor:
    """1{p(x) > q(x)} - P(p > q) at chosen rows, float64[R]; 0 at rows without q."""
    by_row = torch.zeros(len(p), dtype=torch.int64, device=p.device)
    by_row[rows] = tokens
    inside = (mass.double() > drafts.at(by_row)[rows]).double()
    return inside - 1.0 + drafts.mass_at_most(p)[rows] / totals[rows]
