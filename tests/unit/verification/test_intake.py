"""What the intake lets through, replaces and refuses."""

from __future__ import annotations

import numpy as np
import pytest

from draftproof.sampling.draft_q import Dense, DraftQ, Lattice, MalformedQError, OneHot, Sparse, draw
from draftproof.sampling.rng import Draw, Purpose, random_words
from draftproof.verification.intake import RefusalKind, Sent, admit

KEY = bytes(range(32))
START = 100
VOCAB = 10


def a_lattice(shift: int = 0) -> Lattice:
    return Lattice(4, np.array([1, 3, 8]) + shift, np.array([4, 8, 4]))


def own(q: DraftQ, offset: int, start: int = START, key: bytes = KEY) -> int:
    return draw(q, int(random_words([Draw(key, start, offset, Purpose.DRAFT)])[0]))


def honest_block(length: int) -> list[Sent]:
    qs = [a_lattice(offset % 2) for offset in range(length)]
    return [Sent(own(q, offset), q) for offset, q in enumerate(qs)]


def test_an_empty_block_is_fine() -> None:
    intake = admit([], KEY, START, VOCAB)
    assert (intake.tokens, intake.qs, intake.refusal, intake.lossless) == ([], [], None, True)


def test_honest_draws_pass_as_sent() -> None:
    sent = honest_block(6)
    intake = admit(sent, KEY, START, VOCAB)
    assert intake.tokens == [s.token_id for s in sent]
    assert intake.qs == [s.q for s in sent]
    assert intake.refusal is None
    assert intake.lossless


@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("lie", ["another", "out of range", "negative", "no count"])
def test_a_lattice_draw_that_differs_is_replaced_and_ends_the_block(at: int, lie: str) -> None:
    sent = honest_block(4)
    q, token = sent[at].q, sent[at].token_id
    assert isinstance(q, Lattice)
    wrong = {
        "another": next(int(i) for i in q.ids if i != token),
        "out of range": VOCAB,
        "negative": -1,
        "no count": 0,
    }[lie]
    sent[at] = Sent(wrong, q)
    intake = admit(sent, KEY, START, VOCAB)
    assert intake.tokens == [s.token_id for s in sent[:at]] + [token]
    assert intake.qs == [s.q for s in sent[: at + 1]]
    assert intake.refusal is not None
    assert (intake.refusal.offset, intake.refusal.kind) == (at, RefusalKind.DRAW_MISMATCH)
    assert str(wrong) in intake.refusal.message
    assert intake.lossless


@pytest.mark.parametrize("change", ["key", "start"])
def test_draws_with_another_key_or_block_are_found(change: str) -> None:
    key, start = (bytes(32), START) if change == "key" else (KEY, START + 1)
    q = Lattice(8, np.arange(VOCAB), np.array([25] * 9 + [31]))
    sent = [Sent(own(q, offset, start, key), q) for offset in range(16)]
    intake = admit(sent, KEY, START, VOCAB)
    assert intake.refusal is not None
    assert intake.refusal.kind is RefusalKind.DRAW_MISMATCH


@pytest.mark.parametrize("at", range(3))
def test_a_malformed_q_ends_the_block_before_it(at: int) -> None:
    sent = honest_block(3)
    sent[at] = Sent(sent[at].token_id, MalformedQError("masses sum to 0.5"))
    intake = admit(sent, KEY, START, VOCAB)
    assert intake.tokens == [s.token_id for s in sent[:at]]
    assert len(intake.qs) == at
    assert intake.refusal is not None
    assert (intake.refusal.offset, intake.refusal.kind) == (at, RefusalKind.MALFORMED_Q)
    assert intake.refusal.message == "masses sum to 0.5"
    assert intake.lossless


def test_only_the_first_refusal_counts() -> None:
    sent = honest_block(3)
    sent[1] = Sent(0, sent[1].q)
    sent[2] = Sent(0, MalformedQError(""))
    intake = admit(sent, KEY, START, VOCAB)
    assert intake.refusal is not None
    assert intake.refusal.kind is RefusalKind.DRAW_MISMATCH


@pytest.mark.parametrize("token", [0, VOCAB, -1, 2**31])
@pytest.mark.parametrize(
    "q",
    [
        Sparse(np.array([1, 2]), np.array([0.5, 0.5], np.float32)),
        Sparse(np.array([0, 1]), np.array([0.0, 1.0], np.float32)),
        Dense(np.array([0.0, 1.0] + [0.0] * 8, np.float32)),
    ],
)
def test_a_float_q_without_mass_at_the_token_ends_losslessness(q: DraftQ, token: int) -> None:
    sent = [*honest_block(1), Sent(token, q), *honest_block(1)]
    intake = admit(sent, KEY, START, VOCAB)
    assert len(intake.tokens) == 1
    assert intake.refusal is not None
    assert (intake.refusal.offset, intake.refusal.kind) == (1, RefusalKind.ZERO_MASS)
    assert not intake.lossless


def test_a_float_draw_is_believed_down_to_the_smallest_mass() -> None:
    tiny = np.float32(1e-45)
    q = Sparse(np.array([1, 2]), np.array([tiny, 1.0], np.float32))
    assert admit([Sent(1, q)], KEY, START, VOCAB).tokens == [1]


def test_one_hot_is_its_own_draw() -> None:
    assert admit([Sent(3, OneHot(3)), Sent(4, OneHot(4))], KEY, START, VOCAB).refusal is None
    intake = admit([Sent(3, OneHot(5)), Sent(4, OneHot(4))], KEY, START, VOCAB)
    assert intake.tokens == [5]
    assert intake.refusal is not None
    assert intake.refusal.kind is RefusalKind.DRAW_MISMATCH
    assert intake.lossless


def test_without_the_check_a_lattice_is_believed_unless_it_can_not_be() -> None:
    q = a_lattice()
    other = next(int(i) for i in q.ids if i != own(q, 0))
    assert admit([Sent(other, q)], KEY, START, VOCAB, check_draws=False).refusal is None
    intake = admit([Sent(0, q)], KEY, START, VOCAB, check_draws=False)
    assert intake.refusal is not None
    assert intake.refusal.kind is RefusalKind.ZERO_MASS
    assert not intake.lossless


def test_refusal_kinds_are_numbered_as_on_the_wire() -> None:
    from draftproof.v1 import verdict_pb2

    for kind in RefusalKind:
        assert verdict_pb2.RefusalKind.Value(f"REFUSAL_KIND_{kind.name}") == kind
