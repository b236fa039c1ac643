"""Blocks that aren't verified as sent: the law through the real intake, all of the draft's integers enumerated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product

import numpy as np
import pytest

from draftproof.sampling.draft_q import DraftQ, Lattice, MalformedQError, OneHot, support
from draftproof.sampling.rng import Draw, Purpose
from draftproof.verification import intake
from draftproof.verification.intake import Intake, RefusalKind, Sent, admit
from tests.exact.enumeration import (
    Block,
    Drafter,
    Prefix,
    Vector,
    distance,
    output_law,
    random_table,
    target_law,
    tempered,
)

TOLERANCE = 1e-12
CAUGHT = 1e-3
VOCAB = 3
BITS = 3
KEY = bytes(32)

Rule = Callable[[Sequence[Sent]], Intake]


def lattice(row: Vector) -> Lattice:
    """The row in counts of 2**-BITS, zero counts left out."""
    counts = np.floor(row * 2**BITS).astype(np.int64)
    counts[int(row.argmax())] += 2**BITS - counts.sum()
    ids = np.flatnonzero(counts)
    return Lattice(BITS, ids, counts[ids])


def drawn_by(counts: Lattice, integer: int) -> int:
    """The token an integer in [0, 2**BITS) selects."""
    return int(counts.ids[np.searchsorted(np.cumsum(counts.counts), integer, side="right")])


def full(q: DraftQ) -> Vector:
    row = np.zeros(VOCAB)
    ids, masses = support(q)
    row[ids] = masses
    return row


def wired(
    q: Callable[[Prefix], DraftQ | MalformedQError],
    sends: Callable[[Prefix, int], int],
    gamma: int,
    rule: Rule,
    monkeypatch: pytest.MonkeyPatch,
) -> Drafter:
    """A draft whose blocks pass through the target's intake.

    Args:
        q: what it sends after a context.
        sends: the token it sends, given the context and the integer that the request's key gives for this position.
        gamma: proposals per block.
        rule: the target's intake.
        monkeypatch: makes the key's integers enumerable.
    """

    def blocks(prefix: Prefix) -> Iterator[Block]:
        for integers in product(range(2**BITS), repeat=gamma):
            monkeypatch.setattr(intake, "random_words", lambda draws, r=integers: _words(draws, r))
            context, sent = prefix, []
            for integer in integers:
                token = sends(context, integer)
                sent.append(Sent(token, q(context)))
                context = (*context, token)
            admitted = rule(sent)
            yield Block(2.0 ** (-BITS * gamma), tuple(admitted.tokens), tuple(full(each) for each in admitted.qs))

    return blocks


def _words(draws: Sequence[Draw], integers: Sequence[int]) -> np.ndarray:
    assert all(draw.purpose is Purpose.DRAFT for draw in draws)
    return np.array([integers[draw.offset] << (64 - BITS) for draw in draws], dtype=np.uint64)


def real(sent: Sequence[Sent]) -> Intake:
    return admit(sent, KEY, 0, VOCAB)


def trusting(sent: Sequence[Sent]) -> Intake:
    """Wrong: takes the token as sent."""
    return Intake([s.token_id for s in sent], [s.q for s in sent], None, True)


def dropping(sent: Sequence[Sent]) -> Intake:
    """Wrong: ends the block before a draw that differs."""
    admitted = real(sent)
    if admitted.refusal is not None and admitted.refusal.kind is RefusalKind.DRAW_MISMATCH:
        end = admitted.refusal.offset
        return Intake(admitted.tokens[:end], admitted.qs[:end], admitted.refusal, True)
    return admitted


P = random_table(VOCAB, 21, "dense")
Q = random_table(VOCAB, 22, "dense")
TRUTH = target_law(P, 3, VOCAB)


def sent_q(context: Prefix) -> Lattice:
    return lattice(Q(context))


def honest(context: Prefix, integer: int) -> int:
    return drawn_by(sent_q(context), integer)


def hot(context: Prefix, integer: int) -> int:
    """Draws at temperature 2 from what it says was temperature 1."""
    return drawn_by(lattice(tempered(Q(context), 2.0)), integer)


def swapped(context: Prefix, integer: int) -> int:
    """Two tokens' probabilities swapped."""
    return {0: 1, 1: 0}.get(honest(context, integer), 2)


def off_by_one(context: Prefix, integer: int) -> int:
    """Ids shifted by one: the last one is out of range."""
    return honest(context, integer) + 1


def test_an_honest_lattice_passes_untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = wired(sent_q, honest, 2, real, monkeypatch)
    assert {len(block.tokens) for block in drafter(())} == {2}
    assert distance(output_law(P, drafter, 3, VOCAB), TRUTH) < TOLERANCE


@pytest.mark.parametrize("sends", [hot, swapped, off_by_one])
def test_a_draw_that_differs_is_replaced_and_the_law_stays(
    sends: Callable[[Prefix, int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = wired(sent_q, sends, 2, real, monkeypatch)
    assert 1 in {len(block.tokens) for block in drafter(())}
    assert distance(output_law(P, drafter, 3, VOCAB), TRUTH) < TOLERANCE


def test_three_proposals_at_the_wrong_temperature_keep_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = wired(sent_q, hot, 3, real, monkeypatch)
    assert {len(block.tokens) for block in drafter(())} == {1, 2, 3}
    assert distance(output_law(P, drafter, 3, VOCAB), TRUTH) < TOLERANCE


@pytest.mark.parametrize("rule", [trusting, dropping])
@pytest.mark.parametrize("sends", [hot, swapped])
def test_trusting_the_token_or_dropping_the_position_is_caught(
    rule: Rule, sends: Callable[[Prefix, int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = wired(sent_q, sends, 2, rule, monkeypatch)
    assert distance(output_law(P, drafter, 3, VOCAB), TRUTH) > CAUGHT


def test_ending_the_block_before_a_malformed_q_keeps_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """Malformed at some contexts, first positions among them, never because of the token drawn there."""

    def sometimes(context: Prefix) -> Lattice | MalformedQError:
        return MalformedQError("masses sum to 0.5") if context[-1:] == (2,) else sent_q(context)

    drafter = wired(sometimes, honest, 2, real, monkeypatch)
    assert {len(block.tokens) for block in drafter(())} == {1, 2}
    assert {len(block.tokens) for block in drafter((2,))} == {0}
    assert distance(output_law(P, drafter, 3, VOCAB), TRUTH) < TOLERANCE


def test_malformed_because_of_the_token_would_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the rule for malformed q relies on: were it to depend on the drawn token, the law would bend."""

    def drops_token_0(sent: Sequence[Sent]) -> Intake:
        bad = [MalformedQError("") if s.token_id == 0 else s.q for s in sent]
        return real([Sent(s.token_id, q) for s, q in zip(sent, bad, strict=True)])

    drafter = wired(sent_q, honest, 2, drops_token_0, monkeypatch)
    assert distance(output_law(P, drafter, 3, VOCAB), TRUTH) > CAUGHT


def test_one_hot_is_exact_for_any_choice_and_for_a_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second proposal says it is the one-hot token but sends another: the one-hot token takes its place."""

    def guess(context: Prefix) -> OneHot:
        return OneHot((sum(context) + len(context)) % VOCAB)

    def sends(context: Prefix, integer: int) -> int:
        return (guess(context).token_id + (len(context) % 2)) % VOCAB

    drafter = wired(guess, sends, 2, real, monkeypatch)
    assert distance(output_law(P, drafter, 3, VOCAB), TRUTH) < TOLERANCE
