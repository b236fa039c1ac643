"""An orchestrator and its workers in one event loop, over table engines, attached by address."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import grpc.aio

from draft_service.app import DraftApp, DraftConfig, TargetAddress
from draft_service.drafters.interface import Drafter
from draft_service.link import LinkConfig
from draftproof import AsyncClient, Completion
from draftproof.rpc.channel import aio_channel
from draftproof.serving.options import ListenConfig
from draftproof.testing.table import ByteTokenizer, TableEngine
from draftproof.v1 import orchestrator_pb2, orchestrator_pb2_grpc
from orchestrator.app import OrchestratorApp, OrchestratorConfig
from orchestrator.mesh import Mesh
from orchestrator.probe import ProbeConfig
from orchestrator.relay import RelayConfig
from orchestrator.supervisor import SupervisorConfig
from orchestrator.workers import Role, State, Worker
from target_service.app import TargetApp, TargetConfig
from target_service.verifier import VerifierConfig
from tests.integration.services.harness import Kit, Node, Proxy, letters, model_drafter, table, until

PROBES = ProbeConfig(interval=0.05, timeout=1.0, lost_after=0.5)
LINK = LinkConfig(connect_timeout=1.0, reconnect_timeout=0.2)
RELAY = RelayConfig(no_worker=10.0, same_draft=5.0)


@dataclass
class Setting:
    """How to build a cluster."""

    targets: int = 1
    drafts: int = 1
    engine: Callable[[], TableEngine] = lambda: table(slots=8, delay=0.003)
    drafter: Callable[[], Drafter] = lambda: model_drafter(table(noise=0.3, slots=32))
    tokenizer: Callable[[], ByteTokenizer] = letters
    verifier: VerifierConfig = field(default_factory=VerifierConfig)
    relay: RelayConfig = RELAY
    probes: ProbeConfig = PROBES
    link: LinkConfig = LINK
    listen: ListenConfig = field(default_factory=ListenConfig)
    mesh: Mesh = field(default_factory=Mesh)
    door: ListenConfig | None = None
    queue_limit: int = 256
    queue_share: float = 1.5
    gamma: int = 4
    adaptive: bool = True
    max_sessions: int = 512
    stall_timeout: float = 30.0
    extra: Sequence[tuple[Role, str]] = ()


class Cluster:
    """Workers, an orchestrator over them, and a client of it.

    Attributes:
        nodes: workers by name in order: targets, then drafts.
    """

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.targets: list[Node] = []
        self.drafts: list[Node] = []
        self._clients: list[AsyncClient] = []
        self._channels: list[grpc.aio.Channel] = []
        self.kit = Kit()
        self.orchestrators: list[Node] = []

    async def start(self, ready: bool = True) -> None:
        for _ in range(self.setting.targets):
            self.targets.append(await self.target())
        for _ in range(self.setting.drafts):
            self.drafts.append(await self.draft())
        await self.orchestrate()
        if ready:
            await self.ready()

    async def target(self, port: int = 0) -> Node:
        setting = self.setting
        config = TargetConfig(verifier=setting.verifier, listen=replace(setting.listen, port=port))
        return await self.kit._start(TargetApp(setting.engine(), setting.tokenizer(), config))

    async def draft(self, port: int = 0, drafter: Callable[[], Drafter] | None = None) -> Node:
        setting = self.setting
        config = DraftConfig(
            target=TargetAddress(address="", tls=setting.mesh.tls, token=setting.mesh.token),
            listen=replace(setting.listen, port=port),
            link=setting.link,
            gamma=setting.gamma,
            adaptive=setting.adaptive,
            max_sessions=setting.max_sessions,
            stall_timeout=setting.stall_timeout,
        )
        tokenizer = setting.tokenizer()
        made = DraftApp((drafter or setting.drafter)(), tokenizer, tokenizer.vocab_size, config)
        return await self.kit._start(made)

    async def orchestrate(self, port: int = 0) -> Node:
        setting = self.setting
        attached: dict[Role, tuple[str, ...]] = {
            Role.TARGET: tuple(node.address for node in self.targets),
            Role.DRAFT: tuple(node.address for node in self.drafts),
        }
        for role, address in setting.extra:
            attached[role] = (*attached[role], address)
        config = OrchestratorConfig(
            supervisor=SupervisorConfig(wanted={}, attached=attached),
            relay=setting.relay,
            probes=setting.probes,
            queue_limit=setting.queue_limit,
            queue_share=setting.queue_share,
            listen=replace(setting.door or setting.listen, port=port),
            mesh=setting.mesh,
        )
        app: Any = OrchestratorApp(config, None)
        node = await self.kit._start(app)
        self.orchestrators.append(node)
        return node

    @property
    def app(self) -> OrchestratorApp:
        """The newest orchestrator."""
        app: Any = self.orchestrators[-1].app
        assert isinstance(app, OrchestratorApp)
        return app

    @property
    def address(self) -> str:
        return self.orchestrators[-1].address

    def client(self, address: str | None = None, **options: Any) -> AsyncClient:
        client = AsyncClient(address or self.address, **{"timeout": 120.0} | options)
        self._clients.append(client)
        return client

    def steering(self) -> Any:
        channel = aio_channel(self.address)
        self._channels.append(channel)
        return orchestrator_pb2_grpc.OrchestratorServiceStub(channel)

    async def stats(self) -> orchestrator_pb2.StatsResponse:
        stats = await self.steering().Stats(orchestrator_pb2.StatsRequest())
        assert isinstance(stats, orchestrator_pb2.StatsResponse)
        return stats

    def worker(self, node: Node) -> Worker:
        """What the orchestrator knows of a node; nothing much at first."""
        role = Role.TARGET if isinstance(node.app, TargetApp) else Role.DRAFT
        name = f"{role.value}@{node.address}"
        return self.app.fleet.get(name) or Worker(name, role)

    async def ready(self) -> None:
        """Waits until the orchestrator knows all workers."""
        for node in (*self.targets, *self.drafts):
            await until(lambda: self.worker(node).state is State.READY)  # noqa: B023

    async def kill(self, node: Node) -> None:
        """Ends a worker abruptly: no status, no goodbye, its calls are torn."""
        await node.kill()

    async def restart(self, nodes: list[Node], index: int) -> None:
        """Starts a killed worker again at its address."""
        port = nodes[index].port
        nodes[index] = await (self.target(port) if nodes is self.targets else self.draft(port))

    async def close(self) -> None:
        for client in self._clients:
            await client.aclose()
        for channel in self._channels:
            await channel.close()
        await self.kit.close()

    # -- checks --------------------------------------------------------------------------------------------------

    def outstanding(self) -> int:
        return sum(worker.outstanding for worker in self.app.fleet)

    async def idle(self) -> None:
        """Waits until no server holds anything of any request."""
        await until(lambda: not self.held())

    def held(self) -> dict[str, Any]:
        app = self.app
        found: dict[str, Any] = {
            "outstanding": self.outstanding(),
            "calls": sum(len(worker.calls) for worker in app.fleet),
            "running": app._admission.running,
            "waiting": app._admission.waiting,
            "names": dict(app._door.requests._scopes),
        }
        for index, node in enumerate(self.targets):
            assert isinstance(node.app, TargetApp)
            found[f"sessions {index}"] = dict(node.app._verifier._sessions)
            found[f"generations {index}"] = node.app._generator.running
        for index, node in enumerate(self.drafts):
            assert isinstance(node.app, DraftApp)
            found[f"drafting {index}"] = node.app._generator.running
            for entry in node.app._pool._entries.values():
                found[f"link {index}"] = dict(entry.link._sessions)
        return {name: value for name, value in found.items() if value}


class Divider(Proxy):
    """A relay that can be closed for a while."""

    async def part(self) -> None:
        """Cuts every connection and takes no new ones."""
        assert self._server is not None
        self._address = self._server.sockets[0].getsockname()
        self._server.close()
        self.cut()

    async def heal(self) -> None:
        """Takes connections again."""
        self._server = await asyncio.start_server(self._accept, *self._address[:2])


def requests(count: int, tokens: int = 48) -> list[dict[str, Any]]:
    """Greedy and seeded requests by turns, each with another prompt."""
    return [
        {
            "prompt": "abcdefghijklmnop"[i % 16] + "hello" + chr(97 + i % 26),
            "max_tokens": tokens,
            "ignore_eos": True,
            **({"temperature": 0.0} if i % 2 else {"seed": i}),
        }
        for i in range(count)
    ]


def check_same(found: Completion, expected: Completion) -> None:
    """Nothing lost, nothing twice, the same text and law."""
    assert found.token_ids == expected.token_ids
    assert found.text == expected.text
    assert found.usage == expected.usage
    assert found.finish_reason == expected.finish_reason
    assert found.lossless
    assert found.stats.committed == len(found.token_ids)
    assert found.stats.resampled + found.stats.bonus + found.stats.target_only + found.stats.accepted == len(
        found.token_ids
    )
