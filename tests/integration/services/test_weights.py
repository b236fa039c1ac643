"""Other weights under running streams: every token says which ones it comes from, and comes from them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from draft_service.app import DraftApp, DraftConfig, TargetAddress
from draft_service.drafters.model import ModelDrafter
from draftproof import AsyncClient, Completion
from draftproof.client import NO_RETRIES, AsyncStream
from draftproof.engine.config import ModelConfig
from draftproof.engine.engine import TransformersEngine
from draftproof.engine.loading import load_engine, load_tokenizer
from draftproof.engine.updating import WeightsLoader
from draftproof.errors import InvalidArgumentError, UnsupportedError
from draftproof.testing.tiny import load_plain, make_draft_of, make_tiny_model
from target_service.app import TargetApp, TargetConfig
from target_service.verifier import VerifierConfig
from tests.integration.services.harness import Kit, Node, encoder, until

STREAMS = 16
TOKENS = 32


@dataclass
class Pair:
    """A target and a draft over tiny models, and the folders of their weights, old and new."""

    kit: Kit
    target: Node
    draft: Node
    client: AsyncClient
    folders: list[Path]
    drafts: list[Path]

    def verifier(self) -> Any:
        assert isinstance(self.target.app, TargetApp)
        return self.target.app._verifier

    def drafter(self) -> ModelDrafter:
        assert isinstance(self.draft.app, DraftApp)
        drafter = self.draft.app._drafter
        assert isinstance(drafter, ModelDrafter)
        return drafter


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], list[Path]]:
    root = tmp_path_factory.mktemp("weights")
    old, new = (make_tiny_model(root / f"target-{seed}", seed=seed) for seed in (0, 1))
    return [old, new], [make_draft_of(folder, root / f"draft-{folder.name}", 0.1) for folder in (old, new)]


def engine(folder: Path, slots: int) -> tuple[TransformersEngine, Any, WeightsLoader]:
    config = ModelConfig(model=str(folder), slots=slots, max_context=256, dtype="float32")
    tokenizer = load_tokenizer(config)
    loaded = load_engine(config, tokenizer=tokenizer)
    return loaded, tokenizer, WeightsLoader(loaded, tokenizer, config)


@pytest.fixture
async def pair(weights: tuple[list[Path], list[Path]]) -> AsyncIterator[Pair]:
    folders, drafts = weights
    kit = Kit()
    loaded, tokenizer, load = engine(folders[0], STREAMS)
    # read before the streams run, which are over long before a disk has been asked
    ready = {path: load(path) for path in (folders[1], folders[1] / "model.safetensors")}
    target = await kit._start(
        TargetApp(
            loaded,
            tokenizer,
            TargetConfig(verifier=VerifierConfig(queue_limit=64), allow_weight_updates=True),
            lambda path: ready.get(path) or load(path),
        )
    )
    small, tokenizer, load_draft = engine(drafts[0], STREAMS)
    draft = await kit._start(
        DraftApp(
            ModelDrafter(small, encoder("lattice", 128, 12)),
            tokenizer,
            small.vocab_size,
            DraftConfig(target=TargetAddress(address=target.address), gamma=3, allow_weight_updates=True),
            load_draft,
        )
    )
    await until(lambda: draft.serving)
    yield Pair(kit, target, draft, kit.client(draft.address), folders, drafts)
    await kit.close()


class Running:
    """Streams that have begun; every fourth drafts nothing, so that the target runs its rounds unasked."""

    def __init__(self, client: AsyncClient, count: int = STREAMS) -> None:
        self.streams: list[AsyncStream] = [
            client.stream(
                "abcdefgh"[i % 8] + "ello",
                seed=i,
                gamma=3 if i % 4 else 0,
                max_tokens=TOKENS,
                ignore_eos=True,
                logprobs=0,
                timeout=120.0,
            )
            for i in range(count)
        ]
        self.tokens = [0] * count
        self._tasks = [asyncio.create_task(self._read(i)) for i in range(count)]

    async def _read(self, index: int) -> Completion:
        async with self.streams[index] as stream:
            async for chunk in stream:
                self.tokens[index] += len(chunk.tokens)
            return stream.completion

    async def begun(self) -> None:
        await until(lambda: min(self.tokens) >= 3, 60.0)

    async def done(self) -> list[Completion]:
        return list(await asyncio.gather(*self._tasks))


class Recompute:
    """Raw log-probabilities by plain transformers, cold."""

    def __init__(self, folders: list[Path]) -> None:
        self._models = [load_plain(folder) for folder in folders]

    @torch.inference_mode()
    def distances(self, completion: Completion, swapped: bool = False) -> torch.Tensor:
        """How far each token's raw log-probability is from that under the weights it names, or under the others."""
        ids = torch.tensor([[*completion.prompt_ids, *completion.token_ids]])
        logps = [torch.log_softmax(model(ids).logits[0].double(), dim=-1) for model in self._models]
        start = len(completion.prompt_ids)
        found = []
        for i, token in enumerate(completion.tokens):
            assert token.logprobs is not None
            version = token.weights_version ^ swapped
            found.append(token.logprobs.raw_logprob - logps[version][start + i - 1, token.id])
        return torch.stack(found).abs()


@pytest.mark.parametrize("running", ["restart", "finish"])
async def test_sixteen_running_streams(pair: Pair, running: Any) -> None:
    streams = Running(pair.client)
    await streams.begun()
    direct = pair.kit.client(pair.target.address)
    updating = asyncio.create_task(direct.update_weights(pair.folders[1], running=running))
    if running == "finish":
        await until(lambda: pair.verifier()._admission.holding)
        later = asyncio.create_task(pair.client.generate("hello", seed=0, max_tokens=20, logprobs=0))
    (server,) = await updating
    completions = await streams.done()
    assert server.weights_version == 1
    recompute = Recompute(pair.folders)
    for completion in completions:
        versions = [token.weights_version for token in completion.tokens]
        assert versions == sorted(versions)
        assert set(versions) == ({0} if running == "finish" else {0, 1})
        assert completion.weights_version == 0
        assert completion.lossless
        assert len(versions) == TOKENS
        assert completion.stats.drafted > 0 or completion.stats.rounds == TOKENS
        assert recompute.distances(completion).max() < 1e-4
        assert recompute.distances(completion, swapped=True).max() > 0.1
    if running == "restart":
        assert server.restarted == STREAMS
        assert all("weights version 0 became 1" in " ".join(c.notes) for c in completions)
        later = asyncio.create_task(pair.client.generate("hello", seed=0, max_tokens=20, logprobs=0))
    else:
        assert server.restarted == 0
    after = await later
    assert {token.weights_version for token in after.tokens} == {1}
    assert after.weights_version == 1
    assert recompute.distances(after).max() < 1e-4
    info = await pair.client.info()
    assert (info.target.weights_version, info.target.weights_sha256) == (1, server.weights_sha256)


async def test_kept_prefixes_and_keys_do_not_outlive_the_weights(pair: Pair) -> None:
    direct = pair.kit.client(pair.target.address, retries=NO_RETRIES)
    before = await direct.generate("hellohellohello", seed=5, max_tokens=3, logprobs=0)
    await direct.update_weights(pair.folders[1], running="finish")
    after = await direct.generate("hellohellohello", seed=5, max_tokens=3, logprobs=0)
    recompute = Recompute(pair.folders)
    assert recompute.distances(before).max() < 1e-4
    assert recompute.distances(after).max() < 1e-4
    assert before.request_key != after.request_key, "the version is part of the key"
    again = await direct.generate("hellohellohello", seed=5, max_tokens=3)
    assert (again.request_key, again.token_ids) == (after.request_key, after.token_ids)


async def test_a_draft_changes_under_running_streams(pair: Pair) -> None:
    before = pair.drafter().weights_sha256
    direct = pair.kit.client(pair.target.address)
    streams = Running(pair.client, 4)
    await streams.begun()
    data = (pair.drafts[1] / "model.safetensors").read_bytes()
    (draft,) = await pair.client.update_weights(draft=data, running="restart")
    completions = await streams.done()
    assert all(c.lossless and c.stats.refused == 0 for c in completions)
    recompute = Recompute(pair.folders)
    assert max(float(recompute.distances(c).max()) for c in completions) < 1e-4
    assert pair.drafter().weights_sha256 == draft.weights_sha256 != before
    # a draft of the new target, on the old one and on its own: acceptance shows whose weights it drafts with
    apart = await pair.client.generate("hello", seed=1, max_tokens=TOKENS, ignore_eos=True)
    await direct.update_weights(pair.folders[1] / "model.safetensors", running="finish")
    together = await pair.client.generate("hello", seed=1, max_tokens=TOKENS, ignore_eos=True)
    assert apart.stats.acceptance_rate is not None
    assert together.stats.acceptance_rate is not None
    assert together.stats.acceptance_rate > apart.stats.acceptance_rate + 0.2


async def test_what_is_refused_disturbs_nothing(pair: Pair, tmp_path: Path) -> None:
    direct = pair.kit.client(pair.target.address)
    before = await direct.generate("hello", seed=5, max_tokens=8)
    data = (pair.folders[1] / "model.safetensors").read_bytes()
    with pytest.raises(InvalidArgumentError, match="safetensors"):
        await direct.update_weights(data[:-10])
    pair.verifier().weights.version = 3
    with pytest.raises(InvalidArgumentError, match="version must be more than the present"):
        await direct.update_weights(pair.folders[1], version=3)
    pair.verifier().weights.version = 0
    with pytest.raises(InvalidArgumentError, match="role"):
        await direct.update_weights(draft=data)
    after = await direct.generate("hello", seed=5, max_tokens=8)
    assert (after.token_ids, after.request_key) == (before.token_ids, before.request_key)


async def test_an_abandoned_update_lets_requests_in_again(pair: Pair) -> None:
    streams = Running(pair.client, 2)
    await streams.begun()
    direct = pair.kit.client(pair.target.address)
    updating = asyncio.create_task(direct.update_weights(pair.folders[1], running="finish"))
    await until(lambda: pair.verifier()._admission.holding)
    updating.cancel()
    await until(lambda: not pair.verifier()._admission.holding)
    found = await direct.generate("hello", max_tokens=8)
    assert {token.weights_version for c in (*await streams.done(), found) for token in c.tokens} == {0}


async def test_nobody_may_change_weights_unless_allowed(weights: tuple[list[Path], list[Path]]) -> None:
    kit = Kit()
    loaded, tokenizer, load = engine(weights[0][0], 1)
    target = await kit._start(TargetApp(loaded, tokenizer, TargetConfig(), load))
    with pytest.raises(UnsupportedError, match="allow-weight-updates"):
        await kit.client(target.address).update_weights(weights[0][1])
    await kit.close()
