"""TLS and a token on every link of a cluster: client to orchestrator, orchestrator to workers, draft to target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from draftproof.client import NO_RETRIES
from draftproof.errors import UnauthenticatedError, UnavailableError
from draftproof.rpc.security import TlsFiles
from draftproof.serving.options import ListenConfig
from orchestrator.mesh import Mesh
from orchestrator.workers import State
from tests.integration.orchestrator.conftest import Build
from tests.integration.services.authority import Authority
from tests.integration.services.harness import until

TOKEN = "between-workers"
OPTIONS: dict[str, Any] = {"prompt": "hello", "max_tokens": 24, "ignore_eos": True, "seed": 1, "gamma": 3}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


async def test_a_mesh_of_mutual_tls_and_a_token(cluster: Build, authority: Authority) -> None:
    node = authority.files("node")
    built = await cluster(
        listen=ListenConfig(tls=node, token=TOKEN),
        mesh=Mesh(tls=node, token=TOKEN),
        door=ListenConfig(tls=authority.files("front", ca=False), token="for-clients"),
    )
    client = built.client(tls=authority.trust, token="for-clients")
    done = await client.generate(**OPTIONS)
    assert done.stats.accepted, "drafts reach targets"

    for worker in (built.drafts[0], built.targets[0]):
        for refused, options in (
            (UnavailableError, {"token": TOKEN}),
            (UnavailableError, {"token": TOKEN, "tls": authority.trust}),
            (UnauthenticatedError, {"tls": node}),
            (UnauthenticatedError, {"tls": node, "token": "for-clients"}),
        ):
            stranger = built.client(worker.address, retries=NO_RETRIES, **options)
            with pytest.raises(refused):
                await stranger.generate("hello", timeout=3.0)
    for options in ({"token": "for-clients"}, {"tls": authority.trust, "token": TOKEN}):
        with pytest.raises((UnavailableError, UnauthenticatedError)):
            await built.client(retries=NO_RETRIES, **options).generate("hello", timeout=3.0)

    await built.kill(built.drafts[0])
    alone = await client.generate(**OPTIONS | {"gamma": 0})
    assert alone.stats.target_only == 24, "the orchestrator reaches the target itself"


@pytest.mark.parametrize("wrong", ["plaintext", "no certificate", "token"])
async def test_an_orchestrator_that_can_t_show_itself_has_no_workers(
    cluster: Build, authority: Authority, wrong: str
) -> None:
    node = authority.files("node")
    built = await cluster(
        ready=False,
        listen=ListenConfig(tls=node, token=TOKEN),
        mesh={
            "plaintext": Mesh(),
            "no certificate": Mesh(tls=TlsFiles(ca=authority.ca), token=TOKEN),
            "token": Mesh(tls=node, token="another"),
        }[wrong],
        door=ListenConfig(),
    )
    workers = [built.worker(node) for node in (*built.targets, *built.drafts)]
    await until(lambda: all(built.worker(node).problem for node in (*built.targets, *built.drafts)))
    assert not [worker for worker in workers if worker.state is State.READY]
    if wrong == "token":
        assert all("token" in built.worker(node).problem for node in (*built.targets, *built.drafts))
