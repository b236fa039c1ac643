"""The coupled rule: the target's own draw decides, and a proposal stays where it is that draw.

Draft and target draw with the same noise (`sampling.race`), keyed by the request and the position alone. Every
committed token is the winner of the target's own race at its position, so the text is a function of the target and
the key: the one that target-only sampling gives, whatever was proposed, by whom, and in blocks of which length. No q is
needed. A proposal drawn from q is accepted with probability sum_x 1 / sum_y max(p(y) / p(x), q(y) / q(x)), at least
(1 - TV) / (1 + TV) (Daliri et al. 2024, arXiv 2408.07978).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from draftproof.sampling.race import winners


@dataclass(frozen=True, slots=True)
class Chain:
    """One round.

    Attributes:
        key: the request's key, 32 bytes.
        block_start: position of the first proposal.
        first: its first row of p.
        tokens: the proposals.
    """

    key: bytes
    block_start: int
    first: int
    tokens: Sequence[int]


def verify(p: Tensor, usable: Tensor, chains: Sequence[Chain]) -> tuple[list[int], list[int]]:
    """Accepts proposals while they are the target's own draws.

    Rows are drawn from offset by offset and only while their round goes on: a race costs a pass over the vocabulary.

    Args:
        p: float[N, V], per round its rows after 0..gamma proposals.
        usable: bool[N], rows that hold a distribution; the first that doesn't ends its round.
        chains: the rounds.

    Returns:
        Accepted counts, and the token after the accepted ones, 0 where the row for it is unusable.
    """
    good = usable.tolist()
    accepted, following = [0] * len(chains), [0] * len(chains)
    going = list(range(len(chains)))
    while going := [b for b in going if good[chains[b].first + accepted[b]]]:
        rows = [chains[b].first + accepted[b] for b in going]
        positions = [chains[b].block_start + accepted[b] for b in going]
        drawn = winners(p, [chains[b].key for b in going], positions, rows).tolist()
        longer = []
        for b, token in zip(going, drawn, strict=True):
            proposed = chains[b].tokens
            if accepted[b] < len(proposed) and proposed[accepted[b]] == token:
                accepted[b] += 1
                longer.append(b)
            else:
                following[b] = token
        going = longer
    return accepted, following
