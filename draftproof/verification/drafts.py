"""The q of a whole batch, side by side with the packed rows of p and never denser than they were sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from draftproof.sampling.draft_q import Dense, DraftQ, support
from draftproof.verification.lossy_rule import kept
from draftproof.verification.token_rule import SparseQ, expected_acceptance, residual

# Whole rows are copied in float64 only this many elements (4 MiB) at a time: it bounds memory, and larger temporaries
# cost more in page faults than in arithmetic.
_CHUNK_ELEMENTS = 2**19


@dataclass(frozen=True, slots=True)
class Drafts:
    """All q of a batch by row of p, each scaled to the total of its row of p.

    Attributes:
        sparse: lattice, sparse and one-hot q.
        rows: int64[D], ascending, rows with a dense q.
        masses: float[D, V], those q, float32 as sent.
        scales: float64[D], what they are multiplied by.
    """

    sparse: SparseQ
    rows: Tensor
    masses: Tensor
    scales: Tensor

    @classmethod
    def collect(cls, qs: Sequence[DraftQ], rows: Sequence[int], totals: Tensor, vocab_size: int) -> Drafts:
        """Lays out the q of a batch.

        Args:
            qs: one per proposal of the batch, validated.
            rows: the row of p that each belongs to, ascending.
            totals: float64[N], the sum of each row of p.
            vocab_size: V.
        """
        device = totals.device
        owners, ids, masses = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0)]
        dense_rows, dense = [], []
        for row, q in zip(rows, qs, strict=True):
            if isinstance(q, Dense):
                dense_rows.append(row)
                dense.append(np.asarray(q.masses, dtype=np.float32))
            else:
                q_ids, q_masses = support(q)
                owners.append(np.full(len(q_ids), row))
                ids.append(q_ids)
                masses.append(q_masses)
        owner = torch.from_numpy(np.concatenate(owners)).to(device)
        mass = torch.from_numpy(np.concatenate(masses)).to(device) * totals[owner]
        dense_row = torch.tensor(dense_rows, dtype=torch.int64, device=device)
        stacked = np.stack(dense) if dense else np.empty((0, vocab_size), np.float32)
        dense_mass = torch.from_numpy(stacked).to(device)
        return cls(
            sparse=SparseQ(owner, torch.from_numpy(np.concatenate(ids)).to(device), mass),
            rows=dense_row,
            masses=dense_mass,
            scales=totals[dense_row] / row_totals(dense_mass),
        )

    def at(self, tokens: Tensor) -> Tensor:
        """q of one token in every row of p, 0 in rows without a proposal: int64[N] -> float64[N]."""
        at = self.sparse.at(tokens)
        at[self.rows] = self.masses.gather(1, tokens[self.rows][:, None])[:, 0].double() * self.scales
        return at

    def select(self, rows: Tensor, total: int) -> Drafts:
        """The q of chosen rows, renumbered in the order chosen.

        Args:
            rows: int64[B], ascending, in [0, total).
            total: N.
        """
        kept = torch.isin(self.rows, rows)
        return Drafts(
            sparse=self.sparse.select(rows, total),
            rows=torch.searchsorted(rows, self.rows[kept]),
            masses=self.masses[kept],
            scales=self.scales[kept],
        )

    def rescaled(self, factors: Tensor) -> Drafts:
        """Each row times its factor: float64[N]."""
        sparse = SparseQ(self.sparse.rows, self.sparse.ids, self.sparse.masses * factors[self.sparse.rows])
        return Drafts(sparse, self.rows, self.masses, self.scales * factors[self.rows])

    def kept(self, p: Tensor, ratios: Tensor, floors: Tensor) -> Drafts:
        """What a lossy rule keeps of q; see `lossy_rule.kept`. Copies dense rows in float64.

        Args:
            p: float[N, V].
            ratios, floors: float64[N].
        """
        at, masses = self.sparse.rows, self.sparse.masses
        sparse = SparseQ(at, self.sparse.ids, kept(p[at, self.sparse.ids], masses, ratios[at], floors[at]))
        dense = kept(p[self.rows], self._scaled(slice(None)), ratios[self.rows, None], floors[self.rows, None])
        return Drafts(sparse, self.rows, dense, torch.ones_like(self.scales))

    def totals(self, count: int) -> Tensor:
        """The mass of every row, 0 without q: float64[count]."""
        mass = torch.zeros(count, dtype=torch.float64, device=self.scales.device)
        mass.index_add_(0, self.sparse.rows, self.sparse.masses)
        mass[self.rows] = row_totals(self.masses) * self.scales
        return mass

    def expected_acceptance(self, p: Tensor, rows: Tensor) -> Tensor:
        """sum_x min(p, q) of chosen rows, not divided by the total of p.

        Args:
            p: float[N, V].
            rows: int64[R], ascending.

        Returns:
            float64[R].
        """
        chosen = self.select(rows, len(p))
        sparse = SparseQ(rows[chosen.sparse.rows], chosen.sparse.ids, chosen.sparse.masses)
        overlap = expected_acceptance(p, sparse)[rows]
        for part in torch.arange(len(chosen.rows), device=p.device).split(chunk_rows(p.shape[1])):
            owners = chosen.rows[part]
            overlap[owners] = expected_acceptance(p[rows[owners]], chosen._scaled(part))
        return overlap

    def residual(self, p: Tensor) -> Tensor:
        """(p - q)+ of every row, p where nothing was proposed: float[N, V] -> float64[N, V]."""
        weights = residual(p, self.sparse)
        weights[self.rows] = residual(p[self.rows], self._scaled(slice(None)))
        return weights

    def mass_at_most(self, p: Tensor) -> Tensor:
        """sum_x p(x) over tokens with p(x) <= q(x) of every row, not divided by its total: float64[N]."""
        at, ids = self.sparse.rows, self.sparse.ids
        covered = p[at, ids].double()
        covered[covered > self.sparse.masses] = 0.0
        mass = torch.zeros(len(p), dtype=torch.float64, device=p.device).index_add_(0, at, covered)
        for part in torch.arange(len(self.rows), device=p.device).split(chunk_rows(p.shape[1])):
            wide = p[self.rows[part]].double()
            mass[self.rows[part]] = torch.where(wide > self._scaled(part), 0.0, wide).sum(dim=-1)
        return mass

    def _scaled(self, part: Tensor | slice) -> Tensor:
        return self.masses[part].double() * self.scales[part, None]


def chunk_rows(vocab_size: int) -> int:
    """How many rows of V masses to copy in float64 at a time."""
    return max(2, _CHUNK_ELEMENTS // vocab_size)


def row_totals(x: Tensor) -> Tensor:
    """Sums rows in float64: float[N, V] -> float64[N]. A row's total doesn't depend on the rows beside it."""
    totals = torch.empty(len(x), dtype=torch.float64, device=x.device)
    step = chunk_rows(x.shape[1])
    for start in range(0, len(x), step):
        chunk = x[start : start + step]
        # torch splits the sum of a lone row between threads, which rounds differently.
        pair = chunk.expand(2, -1) if len(chunk) == 1 else chunk
        totals[start : start + step] = pair.double().sum(dim=-1)[: len(chunk)]
    return totals
