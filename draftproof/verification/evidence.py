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
    p: Tensor,
    totals: Tensor,
    drafts: Drafts,
    rows: Sequence[Sequence[int]],
    tokens: Sequence[Sequence[int]],
    drafted: list[int],
) -> list[Seen]:
    """What some rounds of a batch committed.

    Args:
        p: float[N, V].
        totals: float64[N], their sums.
        drafts: q of every proposal as its rule takes it, scaled to `totals`.
        rows: of p, one for each token that a round committed.
        tokens: what each committed.
        drafted: for how many of them there was a q.
    """
    at = [row for round_ in rows for row in round_]
    chosen = [token for round_ in tokens for token in round_]
    against_q = [i < count for round_, count in zip(tokens, drafted, strict=True) for i in range(len(round_))]
    measure = row_by_row if p.device.type == "cpu" else together
    found = measure(p, totals, drafts, at, chosen, against_q)
    scale = totals.cpu().numpy()[at]
    above, equal, beyond = found.above / scale, found.equal / scale, found.beyond / scale
    output = [
        Interval(low, width) if width > 0.0 else Interval(1.0, 0.0)
        for low, width in zip(above.tolist(), equal.tolist(), strict=True)
    ]
    excess = (found.inside - beyond).tolist()
    seen, done = [], 0
    for round_, count in zip(tokens, drafted, strict=True):
        seen.append(Seen(output[done : done + len(round_)], excess[done : done + count]))
        done += len(round_)
    return seen


@dataclass(frozen=True, slots=True)
class Measured:
    """Of one token per row, float64[R], not divided by the total of p.

    Attributes:
        above: p of all tokens with more.
        equal: p of all tokens with as much.
        inside: 1 where p > q at the token; 0 where there is no q.
        beyond: p of all tokens with p > q; 0 where there is no q.
    """

    above: NDArray[np.float64]
    equal: NDArray[np.float64]
    inside: NDArray[np.float64]
    beyond: NDArray[np.float64]


def row_by_row(
    p: Tensor, totals: Tensor, drafts: Drafts, rows: Sequence[int], tokens: Sequence[int], against_q: Sequence[bool]
) -> Measured:
    """On the CPU: few tokens are as likely as one that was drawn, and numpy finds them several times as fast as torch
    masks a row.

    Args:
        p: float[N, V].
        totals: float64[N], their sums.
        drafts: q of every proposal.
        rows: of p, ascending.
        tokens: one for each of the rows.
        against_q: whether to compare the row with its q.
    """
    found = np.zeros((4, len(rows)))
    wide, sums = p.numpy(), totals.numpy()
    owners = drafts.sparse.rows.numpy()
    begins, ends = np.searchsorted(owners, rows, "left").tolist(), np.searchsorted(owners, rows, "right").tolist()
    ids, q = drafts.sparse.ids.numpy(), drafts.sparse.masses.numpy()
    dense = {row: i for i, row in enumerate(drafts.rows.tolist())}
    for i, (row, token) in enumerate(zip(rows, tokens, strict=True)):
        masses = wide[row]
        x = masses[token]
        if x > 0:
            least = masses[(masses >= x).nonzero()[0]]
            found[1, i] = np.count_nonzero(least == x) * np.float64(x)
            found[0, i] = least.sum(dtype=np.float64) - found[1, i]
        if not against_q[i]:
            continue
        # sums in float32: their error is far below what a bet of fixed stake can win by
        if row in dense:
            more = masses > drafts.masses[dense[row]].numpy() * np.float32(drafts.scales[dense[row]])
            found[2:, i] = more[token], np.dot(masses, more)
        else:
            here = slice(begins[i], ends[i])
            listed = masses[ids[here]]
            covered = listed <= q[here]
            found[2, i] = x > _at(ids[here], q[here], token)
            found[3, i] = sums[row] - listed.dot(covered)
    return Measured(*found)


def together(
    p: Tensor, totals: Tensor, drafts: Drafts, rows: Sequence[int], tokens: Sequence[int], against_q: Sequence[bool]
) -> Measured:
    """The same for accelerators: a few operations for all rows."""
    at = torch.tensor(rows, dtype=torch.int64, device=p.device)
    chosen = torch.tensor(tokens, dtype=torch.int64, device=p.device)
    mass = p[at, chosen]
    by_row = torch.zeros(len(p), dtype=torch.int64, device=p.device)
    by_row[at] = chosen
    compared = torch.tensor(against_q, device=p.device)
    inside = (mass.double() > drafts.at(by_row)[at]) & compared
    beyond = torch.where(compared, (totals - drafts.mass_at_most(p))[at], 0.0)
    above, equal = [], []
    for part in torch.arange(len(at), device=p.device).split(16 * chunk_rows(p.shape[1])):
        masses, x = p[at[part]], mass[part, None]
        above.append(torch.where(masses > x, masses, 0.0).sum(dim=-1, dtype=torch.float64))
        equal.append((masses == x).sum(dim=-1))
    columns = torch.stack([torch.cat(above), torch.cat(equal) * mass.double(), inside.double(), beyond])
    return Measured(*columns.cpu().numpy())


def _at(ids: NDArray[np.int64], masses: NDArray[np.generic], token_id: int) -> float:
    index = int(ids.searchsorted(token_id))
    return float(masses[index]) if index < len(ids) and ids[index] == token_id else 0.0
