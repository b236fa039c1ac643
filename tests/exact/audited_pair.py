"""The embedded pair through the target's own intake, verification and account: every round of many texts examined."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from bench.prompts import CHAT, CODE
from draftproof.audit.account import Alarm
from draftproof.engine.config import EMBEDDED, EMBEDDED_DRAFT, ModelConfig
from draftproof.engine.interface import Engine, Row
from draftproof.engine.loading import load_engine, load_tokenizer
from draftproof.sampling.draft_q import draw, quantise
from draftproof.sampling.params import Rule
from draftproof.sampling.rng import Draw, Purpose, random_words, uniforms, unit
from draftproof.verification.intake import Sent, admit
from draftproof.verification.round import RoundInput, verify_rounds
from tests.exact.audited_rounds import GAMMA, Draft, Rounds, shown

SESSIONS, LONGEST = 16, 200
ENTRIES, BITS = 128, 10
"""Of a lattice, as a draft server has them by default."""


class Models:
    """The embedded target and its draft, in bfloat16, and the prompts of the benches."""

    def __init__(self) -> None:
        config = ModelConfig(model=EMBEDDED, slots=SESSIONS, dtype="bfloat16")
        tokenizer = load_tokenizer(config)
        self.target: Engine = load_engine(config, tokenizer=tokenizer)
        self.draft: Engine = load_engine(ModelConfig(model=EMBEDDED_DRAFT, slots=SESSIONS, dtype="bfloat16"))
        self.ends = tokenizer.eos_ids
        self.prompts = [tokenizer.render_chat([{"role": "user", "content": text}]) for text in (*CHAT, *CODE)]


class _Text:
    """One session: its key, its ids, and what the caches of its slot hold of them."""

    def __init__(self, prompt: list[int], key: bytes) -> None:
        self.ids, self.prompt, self.key = list(prompt), len(prompt), key
        self.in_target, self.in_draft = 0, 0


class PairRounds(Rounds):
    """Rounds whose p and q are the embedded models'.

    Args:
        models: both; one stream of rounds at a time uses them.
        draft: how proposals are made of the draft's probabilities.
        rule: how they are judged.
        check: whether the target repeats draws.
    """

    def __init__(self, models: Models, draft: Draft, rule: Rule, check: bool, seed: int = 0) -> None:
        super().__init__(models.target.vocab_size, draft, rule, check, seed, SESSIONS)
        self._models = models
        self._prompts = itertools.cycle(models.prompts)
        self._texts = [self._begin() for _ in range(SESSIONS)]

    def step(self) -> list[Alarm]:
        """One pass: a block for every text, judged in one forward pass."""
        sent = self._propose()
        rounds, seen, rows = [], [], []
        for slot, (text, proposals) in enumerate(zip(self._texts, sent, strict=True)):
            intake = admit(proposals, text.key, len(text.ids), self._vocab, self._check)
            fed = [*text.ids[text.in_target :], *intake.tokens]
            rows.append(Row(slot, text.in_target, fed, len(intake.tokens) + 1))
            seen.append(shown(proposals, intake))
            rounds.append(
                RoundInput(
                    params=self._params,
                    prompt_ids=text.ids[: text.prompt],
                    output_ids=text.ids[text.prompt :],
                    key=text.key,
                    block_start=len(text.ids),
                    tokens=intake.tokens,
                    qs=intake.qs,
                    audited=True,
                )
            )
        results = verify_rounds(self._models.target.forward(rows), rounds)
        alarms: list[Alarm] = []
        for slot, (asked, result) in enumerate(zip(rounds, results, strict=True)):
            tokens = [*asked.tokens[: result.accepted], result.next_id]
            ends = [i for i, token in enumerate(tokens) if token in self._models.ends]
            emitted = ends[0] + 1 if ends else len(tokens)
            alarms += self.observe(asked, seen[slot], result, emitted)
            self._commit(slot, tokens, [one.token_id for one in sent[slot]], bool(ends))
        return alarms

    def _begin(self) -> _Text:
        return _Text(next(self._prompts), self._keys.bytes(32))

    @torch.inference_mode()
    def _propose(self) -> list[list[Sent]]:
        sent: list[list[Sent]] = [[] for _ in self._texts]
        for offset in range(GAMMA):
            rows = []
            for slot, text in enumerate(self._texts):
                ids = [*text.ids, *(one.token_id for one in sent[slot])]
                rows.append(Row(slot, text.in_draft, ids[text.in_draft :], 1))
                text.in_draft = len(ids)
            model = torch.softmax(self._models.draft.forward(rows).float(), dim=1)
            places = [(text.key, len(text.ids)) for text in self._texts]
            u = torch.from_numpy(uniforms([Draw(key, at, offset, Purpose.ACCEPT) for key, at in places]))
            words = random_words([Draw(key, at, offset, Purpose.DRAFT) for key, at in places])
            qs = quantise(self._draft.sent(model, u, torch.from_numpy(unit(words))), ENTRIES, BITS)
            for slot, (row, q) in enumerate(zip(model, qs, strict=True)):
                word, drawn = int(words[slot]), self._draft.drawn
                sent[slot].append(Sent(draw(q, word) if drawn is None else drawn(row, q, word), q))
        return sent

    def _commit(self, slot: int, tokens: list[int], proposed: list[int], ended: bool) -> None:
        text = self._texts[slot]
        agreed = int(np.cumprod([a == b for a, b in zip(tokens, proposed, strict=False)]).sum())
        # the last token is fed again, also where it is the very one whose q was refused
        text.in_draft = min(text.in_draft, len(text.ids) + agreed, len(text.ids) + len(tokens) - 1)
        text.ids += tokens
        text.in_target = len(text.ids) - 1
        if ended or len(text.ids) - text.prompt >= LONGEST:
            self._texts[slot] = self._begin()
