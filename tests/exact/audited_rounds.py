"""Rounds of random p and q through the target's own intake, verification and accounts, many sessions a pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from draftproof.audit.account import Account, Alarm, Evidence, threshold
from draftproof.audit.transform import Interval
from draftproof.sampling.draft_q import DraftQ, Lattice, draw, quantise, support
from draftproof.sampling.params import Rule, SamplingParams
from draftproof.sampling.rng import Draw, Purpose, random_words, uniforms, unit
from draftproof.verification.evidence import proposed
from draftproof.verification.intake import Intake, Sent, admit
from draftproof.verification.round import RoundInput, RoundResult, verify_rounds

GAMMA, BITS, ENTRIES = 4, 16, 512
THRESHOLD = threshold(1e-6, 18)

Pick = Callable[[Lattice, int], int]
"""(q as sent, a random word) -> the token that is sent."""


@dataclass(frozen=True)
class Draft:
    """How a draft proposes.

    Attributes:
        sent: probabilities [N, V] of its model -> what it sends, of the numbers it could know: those that decide on
            acceptance, float64[N], and those it draws with.
        drawn: how it draws, from the full row float32[V], what it sends and a word; None: as q and the word say.
    """

    sent: Callable[[Tensor, Tensor, Tensor], Tensor] = lambda q, u, v: q
    drawn: Callable[[Tensor, Lattice, int], int] | None = None


def tempered(masses: np.ndarray, temperature: float, word: int) -> int:
    totals = np.cumsum(np.asarray(masses, dtype=np.float64) ** (1 / temperature))
    return int(np.searchsorted(totals, unit(np.array([word], np.uint64))[0] * totals[-1], side="right"))


def colder(row: Tensor, q: Lattice, word: int) -> int:
    """Draws at temperature 0.9 of what it sends."""
    ids, masses = support(q)
    return int(ids[tempered(masses, 0.9, word)])


def swapped(row: Tensor, q: Lattice, word: int) -> int:
    """Draws with the two likeliest swapped."""
    ids, masses = support(q)
    masses = masses.copy()
    ends = np.argsort(-masses)[:2]
    masses[ends] = masses[ends[::-1]]
    return int(ids[tempered(masses, 1.0, word)])


def from_all(row: Tensor, q: Lattice, word: int) -> int:
    """Draws from all tokens."""
    return tempered(row.numpy(), 1.0, word)


def top_50(q: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """Sends the 50 likeliest alone."""
    least = q.topk(50, dim=1).values[:, -1:]
    kept = torch.where(q >= least, q, 0.0)
    return kept / kept.sum(dim=1, keepdim=True)


def heated(q: Tensor, power: Tensor) -> Tensor:
    powered = q.pow(power.float())
    return powered / powered.sum(dim=1, keepdim=True)


def after_the_numbers(q: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """Sends and draws from a flat q where the accept number is small, and from a sharp one elsewhere."""
    return heated(q, torch.where(u < 0.5, 0.75, 1.3)[:, None])


def to_please(q: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """Of a flat and a sharp q, sends and draws from the one whose draw looks the more acceptable: a better rate."""
    offers, merits = [], []
    for power in (0.75, 1.3):
        offer = heated(q, torch.full((len(q), 1), power))
        token = torch.searchsorted(offer.double().cumsum(1), v[:, None]).clamp(max=q.shape[1] - 1)
        offers.append(offer)
        merits.append((q.gather(1, token) / offer.gather(1, token))[:, 0])
    return torch.where((merits[0] > merits[1])[:, None], offers[0], offers[1])


HONEST = Draft()
CHEATS = {
    "draws at 0.9": Draft(drawn=colder),
    "draws from all, sends 50": Draft(sent=top_50, drawn=from_all),
    "swaps two": Draft(drawn=swapped),
}
KNOWING = {"by the accept number": Draft(sent=after_the_numbers), "to please": Draft(sent=to_please)}


class Rounds:
    """A stream of rounds; p is the softmax of normal logits, q of noisy ones.

    Args:
        vocab: V.
        draft: how proposals are made.
        rule: how they are judged.
        check: whether the target repeats draws.
    """

    def __init__(self, vocab: int, draft: Draft, rule: Rule, check: bool, seed: int = 0, sessions: int = 16) -> None:
        self._random = torch.Generator().manual_seed(seed)
        self._keys = np.random.default_rng(seed)
        self._vocab, self._draft, self._check, self._sessions = vocab, draft, check, sessions
        self._params = SamplingParams(rule=rule)
        self.account = Account(THRESHOLD, GAMMA, np.random.default_rng(seed + 1).random)

    def until(self, tokens: int) -> Alarm | None:
        """The first alarm within so many committed tokens."""
        while self.account.tokens < tokens:
            alarms = self.step()
            if alarms:
                return alarms[0]
        return None

    def step(self) -> list[Alarm]:
        """One pass."""
        count = self._sessions
        logits = 3.0 * torch.randn(count * (GAMMA + 1), self._vocab, generator=self._random)
        logits -= 0.002 * torch.arange(self._vocab)
        noise = torch.randn(logits.shape, generator=self._random)
        model = torch.softmax(logits + 0.7 * noise, dim=1).view(count, GAMMA + 1, -1)[:, :GAMMA].flatten(0, 1)
        keys = [self._keys.bytes(32) for _ in range(count)]
        places = [(key, offset) for key in keys for offset in range(GAMMA)]
        u = torch.from_numpy(uniforms([Draw(key, 1, offset, Purpose.ACCEPT) for key, offset in places]))
        words = random_words([Draw(key, 1, offset, Purpose.DRAFT) for key, offset in places])
        qs = quantise(self._draft.sent(model, u, torch.from_numpy(unit(words))), ENTRIES, BITS)
        rounds, seen, rows = [], [], []
        for b, key in enumerate(keys):
            sent = []
            for i in range(b * GAMMA, (b + 1) * GAMMA):
                word = int(words[i])
                drawn = self._draft.drawn
                sent.append(Sent(draw(qs[i], word) if drawn is None else drawn(model[i], qs[i], word), qs[i]))
            intake = admit(sent, key, 1, self._vocab, self._check)
            first = b * (GAMMA + 1)
            rows += range(first, first + len(intake.tokens) + 1)
            seen.append(shown(sent, intake))
            rounds.append(
                RoundInput(
                    params=self._params,
                    prompt_ids=[0],
                    output_ids=[],
                    key=key,
                    block_start=1,
                    tokens=intake.tokens,
                    qs=intake.qs,
                    audited=True,
                )
            )
        results = verify_rounds(logits[rows], rounds)
        alarms = []
        for asked, sent_as, result in zip(rounds, seen, results, strict=True):
            alarms += self.observe(asked, sent_as, result, result.accepted + 1)
        return alarms

    def observe(self, asked: RoundInput, shown: list[Interval], result: RoundResult, emitted: int) -> list[Alarm]:
        """Takes in a judged round of which so many tokens were emitted, as a target does."""
        assert result.seen is not None
        return self.account.observe(
            Evidence(
                proposals=shown,
                surplus=result.accepted - sum(result.overlaps) if asked.tokens else None,
                output=result.seen.output[:emitted],
                excess=result.seen.excess[:emitted],
                tokens=emitted,
            )
        )


def shown(sent: list[Sent], intake: Intake) -> list[Interval]:
    """What the audit sees of proposals as they were sent: those examined, and one that its q does not have."""
    return [_proposed(one) for one in sent[: len(intake.tokens) + (not intake.lossless)]]


def _proposed(sent: Sent) -> Interval:
    q: DraftQ = sent.q  # type: ignore[assignment]
    return proposed(q, sent.token_id)
