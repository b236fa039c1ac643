"""Models that break, hang or talk nonsense: who is told, who goes on, and that no token comes of it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from draft_service.drafters.interface import Drafter, OpenBlock
from draft_service.drafters.model import ModelDrafter
from draft_service.drafters.ngram import NgramDrafter
from draftproof.client import NO_RETRIES
from draftproof.engine.interface import Row
from draftproof.errors import InternalError, NumericsError
from draftproof.sampling.draft_q import OneHot
from draftproof.serving.drafting import Proposal
from draftproof.testing.table import TableEngine
from target_service.verifier import VerifierConfig
from tests.integration.services.harness import LETTERS, Kit, letters, model_drafter, table, until

GREEDY = {"temperature": 0.0, "max_tokens": 40, "ignore_eos": True}
POISON = letters().encode("z")[0]


class PoisonedEngine(TableEngine):
    """Bad numbers wherever the prompt began with a z."""

    def __init__(self, bad: float) -> None:
        super().__init__(LETTERS, order=300, delay=0.02)
        self._bad = bad
        self.in_company = 0

    def logits_after(self, contexts: Sequence[Sequence[int]]) -> Tensor:
        logits = super().logits_after([context[-2:] for context in contexts])
        poisoned = [context[0] == POISON for context in contexts]
        self.in_company += any(poisoned) and not all(poisoned)
        logits[torch.tensor(poisoned, dtype=torch.bool), 3] = self._bad
        return logits


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
async def test_bad_numbers_fail_their_own_request_alone(kit: Kit, bad: float) -> None:
    engine = PoisonedEngine(bad)
    stack = await kit.stack(engine=engine)
    settings = {"seed": 1, "max_tokens": 40, "ignore_eos": True}
    alone = await stack.client.generate("hello", **settings)  # type: ignore[arg-type]
    for client in (stack.client, stack.direct):
        before = stack.target.count("numerics_errors_total")
        rounds = stack.target.count("rounds_total")
        healthy = asyncio.gather(*(stack.client.generate("hello", **settings) for _ in range(3)))  # type: ignore[arg-type]
        await until(lambda: stack.target.count("rounds_total") > rounds + 3)  # noqa: B023
        with pytest.raises(NumericsError) as caught:
            await client.generate("zebra", **settings)  # type: ignore[arg-type]
        assert caught.value.code == "INTERNAL"
        assert stack.target.count("numerics_errors_total") == before + 1
        assert {completion.token_ids for completion in await healthy} == {alone.token_ids}
    assert engine.in_company, "it shared a pass with healthy ones"
    await stack.idle()


class BadDraftEngine(TableEngine):
    """NaN after every second token."""

    def logits_after(self, contexts: Sequence[Sequence[int]]) -> Tensor:
        logits = super().logits_after(contexts)
        return torch.where(torch.tensor([[c[-1] % 2 == 0] for c in contexts]), torch.nan, logits)


class Raising(ModelDrafter):
    """Breaks in every third step."""

    steps = 0

    def step(self, blocks: Sequence[OpenBlock]) -> None:
        self.steps += 1
        if self.steps % 3 == 0:
            raise RuntimeError("a bug")
        super().step(blocks)


class BreakingEngine(TableEngine):
    """Breaks, and leaves nonsense in the slots it was about to fill."""

    def forward(self, rows: Sequence[Row]) -> Tensor:
        logits = super().forward(rows)
        if self.passes % 3 == 0:
            for row in rows:
                self._cache[row.slot] = [0] * len(self._cache[row.slot])
            raise RuntimeError("a bug")
        return logits


class Slow(ModelDrafter):
    def step(self, blocks: Sequence[OpenBlock]) -> None:
        time.sleep(0.02)
        super().step(blocks)


class Garbage:
    """Proposes too many of anything, tokens that don't exist among them."""

    name = "garbage"
    weights_sha256 = b""
    width = 4
    forward_ns = 0
    calls = 0

    def step(self, blocks: Sequence[OpenBlock]) -> None:
        for block in blocks:
            self.calls += 1
            tokens = [(self.calls * 7 + i * 11) % (LETTERS + 3) for i in range(block.gamma + 5)]
            block.proposals += [Proposal(token, OneHot(token)) for token in tokens]

    def release(self, sequence: object) -> None:
        pass


def wrapped(kind: type[ModelDrafter]) -> Callable[[], Drafter]:
    def build() -> Drafter:
        honest = model_drafter(table(noise=0.1))
        return kind(honest._engine, honest._encode)

    return build


DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "good": lambda: model_drafter(table(noise=0.1)),
    "unrelated": lambda: model_drafter(table(noise=1.0)),
    "sparse": lambda: model_drafter(table(noise=0.2), "sparse"),
    "dense": lambda: model_drafter(table(noise=0.2), "dense"),
    "few slots": lambda: model_drafter(table(noise=0.1, slots=1)),
    "NaN": lambda: model_drafter(BadDraftEngine(LETTERS)),
    "raising": wrapped(Raising),
    "breaking engine": lambda: model_drafter(BreakingEngine(LETTERS)),
    "slow": wrapped(Slow),
    "short context": lambda: model_drafter(table(max_context=20)),
    "prompt lookup": NgramDrafter,
    "garbage": Garbage,
}


@pytest.mark.parametrize("name", DRAFTERS)
async def test_no_drafter_changes_a_greedy_text(kit: Kit, name: str) -> None:
    stack = await kit.stack(drafter=DRAFTERS[name])
    prompts = ["hello", "abcabcabcabc", "q"]
    expected = [(await stack.direct.generate(prompt, **GREEDY)).token_ids for prompt in prompts]  # type: ignore[arg-type]
    found = await asyncio.gather(*(stack.client.generate(prompt, **GREEDY) for prompt in prompts))  # type: ignore[arg-type]
    assert [completion.token_ids for completion in found] == expected
    assert all(completion.lossless for completion in found)
    drafted = sum(completion.stats.drafted for completion in found)
    accepted = sum(completion.stats.accepted for completion in found)
    assert drafted, "it did propose something"
    assert 0 <= accepted <= drafted
    if name in ("raising", "breaking engine"):
        assert stack.draft.count("drafting_failures_total")
    await stack.idle()


async def test_a_draft_engine_that_breaks_is_not_believed_afterwards(kit: Kit) -> None:
    """Its cache may hold anything; what is drafted next must come from a fresh one."""
    stack = await kit.stack(drafter=lambda: model_drafter(BreakingEngine(LETTERS), "dense"))
    completion = await stack.client.generate("hello", **GREEDY)  # type: ignore[arg-type]
    assert completion.stats.acceptance_rate == 1.0


class FailingEngine(TableEngine):
    failing = False

    def forward(self, rows: Sequence[Row]) -> Tensor:
        if self.failing:
            raise RuntimeError("secret details")
        return super().forward(rows)


async def test_an_engine_that_raises_fails_its_rounds_and_nothing_later(kit: Kit) -> None:
    engine = FailingEngine(LETTERS)
    stack = await kit.stack(engine=engine)
    for client in (stack.client, stack.direct):
        engine.failing = True
        with pytest.raises(InternalError) as caught:
            await client.generate("hello")
        assert "secret" not in caught.value.message
        assert "look for" in caught.value.message
        engine.failing = False
        assert len((await client.generate("hello", max_tokens=5, ignore_eos=True)).tokens) == 5
    await stack.idle()


async def test_a_bug_in_one_commit_fails_that_session_alone(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    from target_service.session import Session

    stack = await kit.stack(engine=table(delay=0.01))
    commit = Session.commit

    def broken(self: Session, *arguments: object) -> object:
        if self.request_id == "victim":
            raise RuntimeError("a bug")
        return commit(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Session, "commit", broken)
    healthy = asyncio.create_task(stack.client.generate("hello", max_tokens=30, ignore_eos=True))
    with pytest.raises(InternalError):
        await stack.client.generate("hello", request_id="victim")
    assert len((await healthy).tokens) == 30
    await stack.idle()


class HangingEngine(TableEngine):
    def __init__(self) -> None:
        super().__init__(LETTERS)
        self.go = threading.Event()
        self.go.set()

    def forward(self, rows: Sequence[Row]) -> Tensor:
        self.go.wait(10.0)
        return super().forward(rows)


async def test_the_watchdog_turns_health_and_back(kit: Kit) -> None:
    engine = HangingEngine()
    stack = await kit.stack(engine=engine, verifier=VerifierConfig(stall_timeout=0.2))
    await asyncio.sleep(0.4)
    assert stack.target.serving, "nothing to do is no stall"
    engine.go.clear()
    client = kit.client(stack.draft.address, retries=NO_RETRIES)
    running = asyncio.create_task(client.generate("hello", max_tokens=5, ignore_eos=True))
    await until(lambda: not stack.target.serving, 2.0)
    engine.go.set()
    await until(lambda: stack.target.serving, 2.0)
    assert len((await running).tokens) == 5


async def test_a_long_prompt_does_not_hold_up_the_others(kit: Kit) -> None:
    from target_service.schedule import PassLimits

    engine = table(max_context=5000, delay=0.005)
    stack = await kit.stack(engine=engine, verifier=VerifierConfig(passes=PassLimits(64, 32)))
    long = asyncio.create_task(stack.direct.generate(token_ids=[1] * 2000, max_tokens=1))
    await until(lambda: engine.passes > 3)
    short = await stack.client.generate("hello", max_tokens=20, ignore_eos=True)
    assert len(short.tokens) == 20
    assert not long.done()
    assert len((await long).tokens) == 1
