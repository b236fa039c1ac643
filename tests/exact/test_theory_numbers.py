"""Every number of docs/theory.md, computed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from draftproof.verification import token_rule
from draftproof.verification.token_rule import accept_probability, expected_acceptance, residual
from tests.exact import keyed_rounds
from tests.exact.enumeration import (
    Block,
    Drafter,
    Prefix,
    Vector,
    drawing,
    fixed,
    honest,
    output_law,
    target_law,
    tempered,
)

PAGE = (Path(__file__).parents[2] / "docs" / "theory.md").read_text()

P, Q = np.array([0.6, 0.3, 0.1]), np.array([0.4, 0.5, 0.1])
HOT = tempered(Q, 2.0)
RARE = 0.3

# What isn't computed: names of papers, and bounds that other tests assert.
STATED = ["2211.17192", "2302.01318"]


def p_table(prefix: Prefix) -> Vector:
    return P


def q_table(prefix: Prefix) -> Vector:
    return Q


def emitted(drafter: Drafter) -> list[float]:
    """Law of the first token."""
    law = output_law(p_table, drafter, 1, 3)
    return [law.get((token,), 0.0) for token in range(3)]


def row(name: str, values: list[float], last: str = "") -> str:
    cells = " | ".join(f"{value:.2f}" for value in values)
    return f"| {name} | {cells} |{last}"


def with_residual(wrong: Callable[[Tensor, Tensor], Tensor], monkeypatch: pytest.MonkeyPatch) -> list[float]:
    with monkeypatch.context() as patch:
        patch.setattr(token_rule, "residual", wrong)
        return emitted(honest(q_table, fixed(1)))


def unnormalised(p: Tensor, q: Tensor) -> Tensor:
    weights = (p - q).clamp(min=0.0)
    weights[:, -1] += 1.0 - weights.sum(dim=-1)
    return weights


def dropping(prefix: Prefix) -> Iterator[Block]:
    for block in honest(q_table, fixed(1))(prefix):
        dropped = Q[block.tokens[0]] < RARE
        yield Block(block.probability, () if dropped else block.tokens, () if dropped else block.qs)


def same_number(differing: Callable[[int, int], Block]) -> Drafter:
    """A draft that draws by the right number but at temperature 2; `differing` says what (own, sent) becomes."""

    def blocks(prefix: Prefix) -> Iterator[Block]:
        own_ends, sent_ends = np.cumsum(Q), np.cumsum(HOT)
        for own in range(3):
            for sent in range(3):
                overlap = min(own_ends[own], sent_ends[sent]) - max(own_ends[own] - Q[own], sent_ends[sent] - HOT[sent])
                block = Block(0.0, (own,), (Q,)) if own == sent else differing(own, sent)
                yield Block(max(float(overlap), 0.0), block.tokens, block.qs)

    return blocks


def facts(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The page's statements with their numbers filled in."""
    p, q = torch.from_numpy(P), torch.from_numpy(Q)
    left, accept = residual(p[None], q[None])[0], accept_probability(p, q)
    alpha, z = expected_acceptance(p[None], q[None]).item(), left.sum().item()

    yield f"p = ({', '.join(map(str, P))}) and q = ({', '.join(map(str, Q))})"
    yield row("min(p, q): accepted", (q * accept).tolist())
    yield row("(p − q)⁺", left.tolist())
    yield row("residual (p − q)⁺ / Z", (left / z).tolist())
    yield row("emitted", emitted(honest(q_table, fixed(1))))
    yield f"The acceptance is α = {alpha:.2f}, so Z = {z:.2f}."
    assert accept[[0, 2]].tolist() == [1.0, 1.0]
    yield f"Only dog is ever rejected (with probability {1 - accept[1].item():.2f} when proposed)"

    same = expected_acceptance(p[None], p[None]).item()
    assert torch.equal(residual(p[None], p[None])[0], p)
    yield f"every proposal is accepted: α = {same:.2f} and Z = 0."
    apart = torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[0.5, 0.5, 0.0]])
    assert torch.equal(residual(*apart), apart[0].double())
    yield f"nothing is accepted, α = {expected_acceptance(*apart).item():.2f}"
    per_round = sum(alpha**i for i in range(5))
    yield f"for α = {alpha:.2f} and γ = 4 that is {per_round:.2f}"

    dropped = emitted(dropping)
    yield f"drafts with q(x) < {RARE} are thrown away"
    yield f"emitted with probability {dropped[2]:.2f} instead of {P[2]:.2f}"

    from_p = with_residual(lambda a, b: a.double(), monkeypatch)
    absolute = with_residual(lambda a, b: (a - b).abs(), monkeypatch)
    yield row("none", P.tolist(), " |")
    yield row("resample from p after a rejection", from_p, " enumeration |")
    yield row("residual from \\|p − q\\|", absolute, " enumeration |")
    yield row(
        "residual not normalised (u runs past its total, into the last token)",
        with_residual(unnormalised, monkeypatch),
        " enumeration, grid of uniforms |",
    )
    hot = emitted(drawing(q_table, lambda prefix: HOT, fixed(1)))
    yield row("draw at temperature 2, report q at temperature 1", hot, " enumeration |")
    yield row(f"drop drafts with q(x) < {RARE}", dropped, " enumeration |")
    yield f"**Resampling from p** gives cat {from_p[0]:.2f}"
    yield f"gives dog {absolute[1]:.2f}"

    yield row("the own draw takes its place", emitted(same_number(lambda own, sent: Block(0.0, (own,), (Q,)))))
    yield row("the sent token is trusted", emitted(same_number(lambda own, sent: Block(0.0, (sent,), (Q,)))))
    yield row("the position is dropped", emitted(same_number(lambda own, sent: Block(0.0, (), ()))))

    law = target_law(keyed_rounds.p_table, keyed_rounds.TOKENS, keyed_rounds.VOCAB)
    for name, rule in (("token rule", keyed_rounds.token_rule), ("block rule", keyed_rounds.block_rule)):
        by_block, by_position = (
            keyed_rounds.chi_square(keyed_rounds.sample(rule, layout, 200_000, seed=1), law)
            for layout in (keyed_rounds.by_block, keyed_rounds.by_position)
        )
        yield f"| {name} | χ² = {by_block:.1f} | χ² = {by_position:.1f} |"

    yield f"off by up to about {2.0**-53:.1e}"
    yield f"relative spacing of {torch.finfo(torch.float32).eps:.1e}"
    yield f"moves q by at most {128 / 2 / 2**16:.5f} in total"
    yield f"up to {torch.finfo(torch.bfloat16).eps:.2%} in relative terms".replace("%", " %")


def test_every_number_on_the_page_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    rest = " ".join(PAGE.split())
    for fact in [" ".join(fact.split()) for fact in facts(monkeypatch)]:
        assert fact in rest, f"docs/theory.md should say: {fact}"
        rest = rest.replace(fact, "", 1)
    for stated in STATED:
        rest = rest.replace(stated, "")
    assert re.findall(r"\d+\.\d+\S*", rest) == []
