"""Samples of one prompt run on one computation of it, and say the same as without."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from draftproof import Completion
from draftproof.engine.config import ModelConfig
from draftproof.engine.loading import load_engine, load_tokenizer
from draftproof.errors import InternalError
from draftproof.testing.tiny import make_tiny_model
from target_service.app import TargetApp, TargetConfig
from target_service.schedule import PassLimits
from target_service.verifier import VerifierConfig
from tests.integration.services.harness import Kit, Stack, until
from tests.integration.services.test_prefix_reuse import LONG, Watched

N = 6
SLOW = PassLimits(prefill_chunk=8)
"""A prompt takes many passes, so that the others come while it is read."""


async def sample(client: Any, n: int = N, prompt: str = LONG, **settings: Any) -> list[Completion]:
    settings = {"seed": 3, "max_tokens": 16, "ignore_eos": True, **settings}
    return list(await asyncio.gather(*(client.generate(prompt, sample_index=i, **settings) for i in range(n))))


@pytest.mark.parametrize("gamma", [0, 4])
async def test_the_same_samples_from_less_work(kit: Kit, gamma: int) -> None:
    plain = await kit.stack(engine=Watched(), verifier=VerifierConfig(reuse_prefixes=False))
    stack = await kit.stack(engine=Watched(delay=0.002), verifier=VerifierConfig(passes=SLOW))
    expected = await sample(plain.client, gamma=gamma)
    found = await sample(stack.client, gamma=gamma)
    assert [c.token_ids for c in found] == [c.token_ids for c in expected]
    assert len({c.token_ids for c in found}) == N
    saved = stack.target.count("shared_prefix_tokens_total")
    assert saved == (N - 1) * (len(LONG) - 1)
    assert plain.engine.fed - stack.engine.fed == saved
    assert plain.target.count("shared_prefix_tokens_total") == 0
    await stack.idle()


async def test_those_who_wait_go_on_alone_when_the_first_leaves(kit: Kit) -> None:
    stack = await kit.stack(engine=Watched(delay=0.01), verifier=VerifierConfig(passes=SLOW))
    expected = await sample(stack.direct)
    await stack.idle()
    stack.target.app._verifier._admission.forget()  # type: ignore[union-attr]
    before = stack.target.count("shared_prefix_tokens_total")
    first = asyncio.create_task(stack.direct.generate(LONG, seed=99, max_tokens=16))
    await until(lambda: len(active(stack)) == 1)
    others = asyncio.create_task(sample(stack.direct))
    await until(lambda: sum(s.waits_for_donor for s in active(stack)) == N)
    first.cancel()
    found = await others
    assert [c.token_ids for c in found] == [c.token_ids for c in expected]
    assert stack.target.count("shared_prefix_tokens_total") == before


async def test_a_pass_that_breaks_while_others_wait(kit: Kit) -> None:
    class Breaks(Watched):
        def forward(self, rows: Any) -> Any:
            if self.passes == 5:
                self.passes += 1
                raise RuntimeError("a bug")
            return super().forward(rows)

    stack = await kit.stack(engine=Breaks(delay=0.01), verifier=VerifierConfig(passes=SLOW))
    first = asyncio.create_task(stack.direct.generate(LONG, seed=3, max_tokens=16, ignore_eos=True))
    await until(lambda: len(active(stack)) == 1)
    found = await sample(stack.direct)
    with pytest.raises(InternalError):
        await first
    plain = await kit.stack(engine=Watched(), verifier=VerifierConfig(reuse_prefixes=False))
    assert [c.token_ids for c in found] == [c.token_ids for c in await sample(plain.direct)]


async def test_other_weights_while_others_wait(kit: Kit, tmp_path: Any) -> None:
    """Nothing computed with the old weights is copied by a session under the new ones."""
    from draftproof.engine.updating import WeightsLoader
    from tests.integration.services.test_weights import Recompute

    folders = [make_tiny_model(tmp_path / str(seed), seed=seed) for seed in (0, 1)]
    config = ModelConfig(model=str(folders[0]), slots=N + 1, max_context=256, dtype="float32")
    tokenizer = load_tokenizer(config)
    engine = load_engine(config, tokenizer=tokenizer)
    load = WeightsLoader(engine, tokenizer, config)
    ready = load(folders[1])
    settings = TargetConfig(verifier=VerifierConfig(passes=PassLimits(prefill_chunk=2)), allow_weight_updates=True)
    target = await kit._start(TargetApp(engine, tokenizer, settings, lambda path: ready))
    client = kit.client(target.address)
    verifier: Any = target.app._verifier  # type: ignore[union-attr]
    prompt = "hello" * 40
    running = asyncio.create_task(sample(client, N + 1, prompt, max_tokens=8, logprobs=0))
    await until(lambda: sum(s.waits_for_donor for s in verifier._admission.active) >= N - 1)
    await client.update_weights(folders[1], running="restart")
    recompute = Recompute(folders)
    for completion in await running:
        assert {token.weights_version for token in completion.tokens} == {1}
        assert recompute.distances(completion).max() < 1e-4
        assert recompute.distances(completion, swapped=True).max() > 0.1
    again = await sample(client, N + 1, "olleh" * 40, max_tokens=8, logprobs=0)
    assert target.count("shared_prefix_tokens_total") > 0
    assert max(recompute.distances(completion).max() for completion in again) < 1e-4


def active(stack: Stack) -> list[Any]:
    assert isinstance(stack.target.app, TargetApp)
    return stack.target.app._verifier._admission.active
