"""Servers with one rule broken on purpose: `python -m tests.e2e.variants RULE MODULE [options of the service]`.

Each rule is a function that replaces a piece of the real code before the service starts. They exist to show that the
statistical tests see what they are there to see, and to make a server slow or dishonest on demand.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

ATOM = 2.0**-8
UNLIKELY = 0.15
HEAT = 1.7
PASS_SECONDS = 0.3

RULES: dict[str, Callable[[], None]] = {}


def rule(install: Callable[[], None]) -> Callable[[], None]:
    """Registers a rule under its function's name."""
    RULES[install.__name__] = install
    return install


# -- targets ----------------------------------------------------------------------------------------------------------


@rule
def resample_from_p() -> None:
    """After a rejection the token comes from p."""
    from draftproof.verification import drafts

    drafts.residual = lambda p, q: p.to(torch.float64, copy=True)


@rule
def absolute_residual() -> None:
    """After a rejection the token comes from |p - q|."""
    from draftproof.verification import drafts
    from draftproof.verification.token_rule import SparseQ

    def residual(p, q):
        weights = p.to(torch.float64, copy=True)
        if isinstance(q, SparseQ):
            weights[q.rows, q.ids] = (weights[q.rows, q.ids] - q.masses).abs()
            return weights
        return (weights - q).abs()

    drafts.residual = residual


@rule
def unnormalised_residual() -> None:
    """The inverse CDF isn't scaled by the residual's own total; what is missing falls to the last token."""
    from draftproof.verification import round

    def inverse_cdf(weights, u):
        return (weights.cumsum(dim=-1) <= u[:, None]).sum(dim=-1).clamp(max=weights.shape[1] - 1)

    round.inverse_cdf = inverse_cdf


@rule
def siblings_by_whole_q() -> None:
    """Siblings drawn without replacement are judged as if they had been drawn with it."""
    from target_service import intake

    admit = intake.admit_tree

    def admit_tree(*of):
        taken = admit(*of)
        if taken.tree is None:
            return taken
        whole = {}
        for parent, left in zip(taken.tree.parents, taken.tree.qs, strict=True):
            whole.setdefault(parent, left)
        return replace(taken, tree=replace(taken.tree, qs=[whole[parent] for parent in taken.tree.parents]))

    intake.admit_tree = admit_tree


def _accept_with_atom(strict: bool) -> None:
    """Real generators give u = 0 once in 2^53 draws; this one does once in 2^8, so that its treatment shows."""
    from draftproof.verification import token_rule

    def accepts(p_x, q_x, u):
        u = torch.where(u < ATOM, 0.0, u)
        return u * q_x.double() < p_x.double() if strict else u * q_x.double() <= p_x.double()

    token_rule.accepts = accepts


@rule
def strict_with_atom() -> None:
    """The right comparison, under a generator that often gives u = 0."""
    _accept_with_atom(strict=True)


@rule
def at_most_with_atom() -> None:
    """`<=` in place of `<`, under the same generator."""
    _accept_with_atom(strict=False)


@rule
def unchecked_draws() -> None:
    """The draft's tokens are believed."""
    from draftproof.verification.intake import admit
    from target_service import intake as module

    module.admit = lambda *arguments: admit(*arguments, check_draws=False)


@rule
def dropped_mismatches() -> None:
    """A position whose token isn't the one that q and the key give is dropped instead of drawn again."""
    from draftproof.verification.intake import RefusalKind, admit
    from target_service import intake as module

    def dropping(*arguments):
        intake = admit(*arguments)
        if intake.refusal is None or intake.refusal.kind is not RefusalKind.DRAW_MISMATCH:
            return intake
        kept = intake.refusal.offset
        return replace(intake, tokens=intake.tokens[:kept], qs=intake.qs[:kept])

    module.admit = dropping


@rule
def penalties_of_the_prefix() -> None:
    """All positions of a block see the penalties of its first."""
    from draftproof.sampling.pipeline import History
    from draftproof.verification import round

    round._histories = lambda rounds: [
        History(r.prompt_ids, r.output_ids) for r in rounds for _ in range(len(r.tokens) + 1)
    ]


@rule
def slow() -> None:
    """Every forward pass takes its time, so that whatever happens to a session happens inside a round."""
    from draftproof.engine.engine import TransformersEngine

    forward = TransformersEngine.forward

    def slowly(self, rows):
        time.sleep(PASS_SECONDS)
        return forward(self, rows)

    TransformersEngine.forward = slowly


# -- drafts -----------------------------------------------------------------------------------------------------------


def _draw_with(pick: Callable[[np.ndarray, float], int]) -> None:
    """Tokens are drawn in another way than q and the key say.

    Args:
        pick: from the masses of q's support and a uniform number to an index.
    """
    from draft_service.drafters import model
    from draftproof.sampling.draft_q import support

    def draw(q, word):
        ids, masses = support(q)
        return int(ids[pick(masses, (word >> 11) * 2.0**-53)])

    model.draw = draw


def _inverse_cdf(masses: np.ndarray, u: float) -> int:
    totals = np.cumsum(masses)
    return int(np.searchsorted(totals, u * totals[-1], side="right"))


@rule
def drawn_hotter() -> None:
    """Draws at a higher temperature than that of the q it sends."""
    _draw_with(lambda masses, u: _inverse_cdf(masses ** (1 / HEAT), u))


@rule
def swapped_tokens() -> None:
    """Draws with the masses of the likeliest and the unlikeliest token swapped."""

    def swapped(masses, u):
        masses = masses.copy()
        ends = [masses.argmax(), masses.argmin()]
        masses[ends] = masses[ends[::-1]]
        return _inverse_cdf(masses, u)

    _draw_with(swapped)


@rule
def off_by_one() -> None:
    """Sends the id after the one it drew."""
    _draw_with(lambda masses, u: (_inverse_cdf(masses, u) + 1) % len(masses))


@rule
def unlikely_dropped() -> None:
    """Sends no token that q finds unlikely: the block ends before it."""
    from draft_service.drafters.model import ModelDrafter
    from draftproof.sampling.draft_q import mass

    honest = ModelDrafter._draw

    def dropping(self, blocks, logits):
        honest(self, blocks, logits)
        for block in blocks:
            if block.proposals and mass(block.proposals[-1].q, block.proposals[-1].token_id) < UNLIKELY:
                block.proposals.pop()
                block.ended = True

    ModelDrafter._draw = dropping


def main() -> None:
    """Installs the rule and runs the service."""
    name, module = sys.argv[1:3]
    RULES[name]()
    sys.argv[1:3] = []
    importlib.import_module(f"{module}.__main__").cli()


if __name__ == "__main__":
    main()
