"""Prompts that begin like an earlier one start from its KV, and say the same as without it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from draftproof.engine.interface import Row
from draftproof.errors import InternalError, NumericsError
from draftproof.testing.table import TableEngine
from target_service.app import TargetApp
from target_service.verifier import VerifierConfig
from tests.integration.services.harness import EOS, LETTERS, Kit, ScriptEngine, Stack, letters, model_drafter

LONG = "abcdefghij" * 8


class Watched(TableEngine):
    """Depends on the whole text, so that a wrong token anywhere in the cache shows."""

    def __init__(self, **options: Any) -> None:
        super().__init__(LETTERS, order=250, **options)


def admission(stack: Stack) -> Any:
    assert isinstance(stack.target.app, TargetApp)
    return stack.target.app._verifier._admission


@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {"seed": 3}, {"seed": 3, "gamma": 0}])
async def test_the_same_text_from_less_work(kit: Kit, settings: dict[str, Any]) -> None:
    options = {"max_tokens": 24, "ignore_eos": True, **settings}
    plain = await kit.stack(engine=Watched(), verifier=VerifierConfig(reuse_prefixes=False))
    stack = await kit.stack(engine=Watched())
    luck = random.Random(1)
    for turn in range(12):
        prompt = LONG[: luck.randrange(20, 80)] + "xyz"[: turn % 4]
        expected = await plain.client.generate(prompt, **options)
        found = await stack.client.generate(prompt, **options)
        assert found.token_ids == expected.token_ids
        await stack.idle()
    assert stack.engine.fed < 0.8 * plain.engine.fed
    assert stack.target.count("reused_prefix_tokens_total") > 300
    assert plain.target.count("reused_prefix_tokens_total") == 0


async def test_a_conversation_goes_on_from_its_own_answer(kit: Kit) -> None:
    stack = await kit.stack(engine=Watched(slots=2))
    first = await stack.client.generate(LONG, temperature=0.0, max_tokens=20, ignore_eos=True)
    await stack.idle()
    fed = stack.engine.fed
    prompt = [*letters().encode(LONG), *first.token_ids, *letters().encode("more")]
    await stack.client.generate(token_ids=prompt, temperature=0.0, max_tokens=2, ignore_eos=True)
    assert stack.engine.fed - fed < 20


async def test_nothing_after_a_cut_is_kept(kit: Kit) -> None:
    script = [1, 2, 3, EOS, 5, 6, 7, 8]
    engine = ScriptEngine(script, 5)
    stack = await kit.stack(engine=engine, drafter=lambda: exact(script))
    done = await stack.client.generate("hello", temperature=0.0, max_tokens=8, gamma=8)
    assert done.token_ids == (1, 2, 3, EOS)
    await stack.idle()
    kept = [list(tokens) for tokens in admission(stack)._kept if tokens]
    text = [*letters().encode("hello"), 1, 2, 3, EOS]
    assert len(kept) == 1
    assert kept[0] == text[: len(kept[0])]


def exact(script: Sequence[int]) -> Any:
    return model_drafter(ScriptEngine(script, 5))


class Faulty(TableEngine):
    """Gives bad numbers or breaks after the prompt is read, as long as it is told to."""

    def __init__(self, how: str) -> None:
        super().__init__(LETTERS, order=250)
        self.how = how
        self.on = False

    def forward(self, rows: Sequence[Row]) -> Tensor:
        logits = super().forward(rows)
        if self.on and any(row.logits for row in rows):
            if self.how == "breaks":
                for row in rows:
                    self._cache[row.slot] = [0] * len(self._cache[row.slot])
                raise RuntimeError("a bug")
            return torch.full_like(logits, float("nan"))
        return logits


@pytest.mark.parametrize("how", ["breaks", "nan"])
async def test_a_slot_that_failed_keeps_nothing(kit: Kit, how: str) -> None:
    engine = Faulty(how)
    stack = await kit.stack(engine=engine, gamma=2)
    expected = await stack.direct.generate(LONG, temperature=0.0, max_tokens=8, ignore_eos=True)
    await stack.idle()
    engine.on = True
    with pytest.raises(InternalError if how == "breaks" else NumericsError):
        await stack.direct.generate(LONG, temperature=0.0, max_tokens=8, ignore_eos=True)
    engine.on = False
    assert not any(admission(stack)._kept)
    again = await stack.direct.generate(LONG, temperature=0.0, max_tokens=8, ignore_eos=True)
    assert again.token_ids == expected.token_ids


async def test_sessions_that_leave_at_any_moment_leave_valid_prefixes(kit: Kit) -> None:
    stack = await kit.stack(engine=Watched(slots=2, delay=0.002))
    luck = random.Random(4)
    for turn in range(12):
        prompt = LONG[: luck.randrange(20, 80)]
        async with stack.client.stream(prompt, seed=turn, max_tokens=60, ignore_eos=True) as stream:
            for _ in range(luck.randrange(1, 5)):
                await anext(stream)
    await stack.idle()
    for slot, kept in enumerate(admission(stack)._kept):
        assert list(stack.engine.cached(slot))[: len(kept)] == list(kept)
    plain = await kit.stack(engine=Watched(), verifier=VerifierConfig(reuse_prefixes=False))
    for settings in ({"temperature": 0.0}, {"seed": 9}):
        options: dict[str, Any] = {"max_tokens": 24, "ignore_eos": True, **settings}
        expected = await plain.client.generate(LONG, **options)
        assert (await stack.client.generate(LONG, **options)).token_ids == expected.token_ids
