"""Other weights for a whole cluster: all targets at once, and none with others among them afterwards."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from draftproof import Completion
from draftproof.client import NO_RETRIES
from draftproof.engine.interface import Update
from draftproof.errors import InvalidArgumentError, PeerUnavailableError
from draftproof.serving.weights import Loader
from draftproof.testing.table import TableEngine
from orchestrator.workers import State
from target_service.app import TargetApp, TargetConfig
from tests.integration.orchestrator.harness import Cluster, Setting
from tests.integration.services.harness import Node, letters, table, until

NEW = "7"
OTHER = "8"
TOKENS = 40


class Changing(TableEngine):
    """A table that can become another one."""

    def become(self, seed: int, sha256: bytes) -> None:
        self._seed = seed
        self.weights_sha256 = sha256
        for slot in range(self.slots):
            self.truncate(slot, 0)


def loader(engine: Changing) -> Loader:
    """Reads a table's seed off the path."""

    def load(path: Path) -> Update:
        if not path.name.isdigit():
            raise InvalidArgumentError.of("path", "a number", str(path))
        sha256 = hashlib.sha256(path.name.encode()).digest()
        return Update(sha256, lambda: engine.become(int(path.name), sha256))

    return load


class Changeable(Cluster):
    """A cluster whose targets take updates."""

    async def target(self, port: int = 0) -> Node:
        engine = Changing(27, slots=8, delay=0.003)
        listen = replace(self.setting.listen, port=port)
        config = TargetConfig(listen=listen, allow_weight_updates=True)
        return await self.kit._start(TargetApp(engine, letters(), config, loader(engine)))


@pytest.fixture
async def cluster() -> AsyncIterator[Changeable]:
    relay = replace(Setting().relay, no_worker=1.0)
    made = Changeable(Setting(targets=2, relay=relay))
    await made.start()
    yield made
    await made.close()


def check(completion: Completion, seeds: dict[int, int]) -> None:
    """Greedy tokens are those of the table whose version they name."""
    ids = [*completion.prompt_ids]
    for token in completion.tokens:
        logits = table(seed=seeds[token.weights_version]).logits_after([ids])[0]
        assert token.id == int(logits.argmax())
        ids.append(token.id)


async def generate(cluster: Cluster, index: int = 0) -> Completion:
    return await cluster.client().generate(
        "hello" + "abcdefgh"[index % 8], temperature=0.0, max_tokens=TOKENS, ignore_eos=True
    )


@pytest.mark.parametrize("running", ["finish", "restart"])
async def test_all_targets_change_under_running_streams(cluster: Changeable, running: str) -> None:
    streams = [asyncio.create_task(generate(cluster, i)) for i in range(4)]
    await until(lambda: cluster.app._door.totals.committed > 20)
    servers = await cluster.client().update_weights(NEW, running=running)  # type: ignore[arg-type]
    completions = await asyncio.gather(*streams)
    assert [(s.weights_version, s.problem) for s in servers] == [(1, "")] * 2
    assert len({s.name for s in servers}) == 2
    for completion in completions:
        check(completion, {0: 0, 1: int(NEW)})
        assert completion.lossless
    versions = {token.weights_version for c in completions for token in c.tokens}
    assert versions == ({0} if running == "finish" else {0, 1})
    after = await generate(cluster)
    assert {token.weights_version for token in after.tokens} == {1}
    check(after, {1: int(NEW)})


async def test_a_restarted_stream_goes_on_at_a_target_of_the_same_new_weights(cluster: Changeable) -> None:
    stream = asyncio.create_task(generate(cluster))
    await until(lambda: cluster.app._door.totals.committed > 10)
    await cluster.client().update_weights(NEW, running="restart")
    committed = cluster.app._door.totals.committed
    await until(lambda: cluster.app._door.totals.committed > committed)
    serving = next(node for node in cluster.targets if cluster.worker(node).outstanding)
    await cluster.kill(serving)
    completion = await stream
    assert "target_lost" in " ".join(completion.notes)
    check(completion, {0: 0, 1: int(NEW)})
    assert completion.tokens[-1].weights_version == 1


async def test_a_target_that_comes_with_old_weights_gets_nothing(cluster: Changeable) -> None:
    await cluster.client().update_weights(NEW, running="finish")
    await cluster.kill(cluster.targets[0])
    await cluster.restart(cluster.targets, 0)
    await until(
        lambda: (
            cluster.worker(cluster.targets[0]).state is State.READY
            and cluster.worker(cluster.targets[0]).fingerprint.weights_version == 0
        )
    )
    for completion in await asyncio.gather(*(generate(cluster, i) for i in range(6))):
        check(completion, {1: int(NEW)})
    await cluster.kill(cluster.targets[1])
    with pytest.raises(PeerUnavailableError, match="weights"):
        await cluster.client(retries=NO_RETRIES).generate("hello", max_tokens=4)
    (server,) = await cluster.client().update_weights(OTHER, running="finish")
    assert server.weights_version == 2, "a version never names two sets of weights"
    check(await generate(cluster), {2: int(OTHER)})


async def test_what_no_target_takes_is_an_error(cluster: Changeable) -> None:
    with pytest.raises(InvalidArgumentError, match="path must be a number"):
        await cluster.client().update_weights("nothing")
    assert cluster.app.fleet.target_weights == b""
    check(await generate(cluster), {0: 0})
