"""The draft process: drafter, link to the target, and the front door."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import structlog
from prometheus_client import CollectorRegistry

from draft_service.copying import Copier
from draft_service.drafters.interface import Drafter
from draft_service.drafters.model import ModelDrafter, encoder
from draft_service.drafters.ngram import NgramDrafter
from draft_service.drafters.replay import ReplayDrafter
from draft_service.drafters.trees import TreeShape
from draft_service.link import LinkConfig, TargetLink
from draft_service.loop import DraftLoop
from draft_service.pool import DraftServicer, LinkPool, NoTarget
from draft_service.settings import check_drafter, check_tree
from draftproof.engine.config import ModelConfig
from draftproof.engine.interface import Tokenizer, Update
from draftproof.metrics.draft import DraftMetrics
from draftproof.rpc.channel import aio_channel
from draftproof.rpc.security import TlsFiles
from draftproof.rpc.server import RunningServer, Service
from draftproof.serving import process
from draftproof.serving.generation import GenerationConfig, GenerationServicer, Generator
from draftproof.serving.model_thread import ModelThread
from draftproof.serving.options import ListenConfig
from draftproof.serving.weights import Loader, WeightsServicer, next_version, unsupported
from draftproof.v1 import draft_pb2_grpc, generation_pb2_grpc, orchestrator_pb2, weights_pb2, weights_pb2_grpc
from draftproof.version import VERSION
from draftproof.wire import fingerprint as wire_fingerprint

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetAddress:
    """How to reach the target.

    Attributes:
        address: host:port; empty where an orchestrator names the targets.
        tls: authority of its certificate and, for mutual TLS, our own certificate; None is plaintext.
        token: bearer token it asks for.
        insecure: allows plaintext beyond loopback.
    """

    address: str = "127.0.0.1:7600"
    tls: TlsFiles | None = None
    token: str | None = None
    insecure: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftConfig:
    """Settings of a draft process.

    Attributes:
        drafter: "ngram" (prompt lookup), "model", or "hybrid": a model that leans towards what prompt lookup says.
        model: the draft model; for "ngram", where the tokenizer comes from.
        q_encoding: lattice, sparse or dense.
        lattice_entries: tokens a lattice keeps.
        lattice_bits: k of its 2^k.
        replay: earlier outputs of the same prompt, most, that are remembered and drafted from; see `ReplayDrafter`.
        gamma: proposals per round where a request doesn't say.
        tree: children of each node by depth, for requests under the tree rule; gamma caps the depth.
        adaptive: whether gamma follows what rounds show, where neither the request nor its seed fixes it.
        ahead: whether blocks are drafted ahead of verdicts; None: where that saves time.
        max_sessions: requests at once.
        allow_weight_updates: whether clients may change the draft model's weights.
        stall_timeout: seconds a step of the drafter may take before requests go on without proposals.
    """

    drafter: str = "ngram"
    model: ModelConfig = field(default_factory=ModelConfig)
    target: TargetAddress = field(default_factory=TargetAddress)
    listen: ListenConfig = field(default_factory=ListenConfig)
    link: LinkConfig = field(default_factory=LinkConfig)
    q_encoding: str = "lattice"
    lattice_entries: int = 128
    lattice_bits: int = 10
    replay: int = 0
    gamma: int = 4
    tree: tuple[int, ...] = (3, 2, 1)
    adaptive: bool = True
    ahead: bool | None = None
    max_sessions: int = 512
    allow_weight_updates: bool = False
    stall_timeout: float = 30.0


class DraftApp:
    """Serves GenerationService by drafting here and verifying on the target."""

    def __init__(
        self,
        drafter: Drafter,
        tokenizer: Tokenizer,
        vocab_size: int,
        config: DraftConfig,
        load_weights: Loader = unsupported,
        copier: Copier | None = None,
        thread: ModelThread | None = None,
    ) -> None:
        self._config = config
        self._tokens = process.vocabulary(tokenizer, vocab_size)
        self._fingerprint = process.fingerprint(self._tokens, drafter.name, drafter.weights_sha256)
        self._drafter = drafter
        self.registry = CollectorRegistry()
        self._metrics = DraftMetrics(self.registry)
        self._metrics.build_info(
            role="draft", version=VERSION, model=drafter.name, weights_sha256=drafter.weights_sha256
        )
        self._thread = thread or ModelThread("draft")
        self._loop = DraftLoop(drafter, self._thread, self._metrics, config.stall_timeout, self._on_drafter, copier)
        limits = config.listen.limits
        self._generator = Generator(
            self._loop,
            tokenizer,
            GenerationConfig(
                role="draft",
                default_gamma=config.gamma,
                max_sessions=config.max_sessions,
                slots=min(config.max_sessions, drafter.width),
                max_message_bytes=limits.max_message_bytes,
                adaptive=config.adaptive,
                ahead=config.ahead,
            ),
            self._metrics.round,
        )
        self._metrics.follow(lambda: self._generator.running)
        self._weights = WeightsServicer(
            orchestrator_pb2.WORKER_ROLE_DRAFT, load_weights, self._change, allowed=config.allow_weight_updates
        )
        self._pool = LinkPool(self._make_link)
        self._link: TargetLink | None = None
        self.metrics_port: int | None = None
        self.server: RunningServer | None = None

    async def start(self) -> None:
        """Listens; healthy once its own target, if it has one, has agreed to the handshake."""
        config = self._config
        self.metrics_port = process.serve_metrics(self.registry, config.listen)
        if config.target.address:
            self._link = self._make_link(config.target.address, self._on_link)
        generation = GenerationServicer(self._generator, self._link or NoTarget(), self._fingerprint)
        generation.metrics_port = self.metrics_port
        self.server = await process.listen(
            [
                Service(
                    "draftproof.v1.GenerationService",
                    generation_pb2_grpc.add_GenerationServiceServicer_to_server,
                    generation,
                ),
                Service(
                    "draftproof.v1.DraftService",
                    draft_pb2_grpc.add_DraftServiceServicer_to_server,
                    DraftServicer(self._generator, self._pool),
                ),
                Service(
                    "draftproof.v1.WeightsService",
                    weights_pb2_grpc.add_WeightsServiceServicer_to_server,
                    self._weights,
                ),
            ],
            config.listen,
        )
        if self._link is None:
            self.server.set_serving(True)
        log.info(
            "serving",
            address=str(self.server.address),
            drafter=self._drafter.name,
            target=config.target.address or None,
        )

    async def _change(self, update: Update, version: int | None, restart: bool) -> weights_pb2.UpdatedServer:
        # whatever a draft proposes, the law is the target's: running sessions need neither finish nor restart
        ours = self._fingerprint
        version = next_version(ours.weights_version, version)
        await self._loop.change_weights(update)
        ours.weights_version, ours.weights_sha256 = version, update.sha256
        self._metrics.build_info(role="draft", version=VERSION, model=self._drafter.name, weights_sha256=update.sha256)
        log.info("weights changed", version=version, sha256=update.sha256.hex()[:16])
        return weights_pb2.UpdatedServer(weights_version=version, weights_sha256=update.sha256)

    async def run(self) -> None:
        """Runs the drafting loop and the link to its own target.

        Raises:
            FingerprintMismatchError: draft and target don't fit.
        """
        await process.run_all([self._loop.run(), *([self._link.run()] if self._link is not None else [])])

    async def drain(self) -> None:
        """NOT_SERVING, no new requests, the grace period for running ones, then hand-back."""
        assert self.server is not None
        self.server.start_draining()
        await self._generator.drain(self._config.listen.grace)
        await self._pool.close()
        await self.server.stop(1.0)
        self._thread.stop()

    def _make_link(self, address: str, on_ready: Callable[[bool], None] = lambda up: None) -> TargetLink:
        target = self._config.target

        def changed(up: bool) -> None:
            self._metrics.link(up)
            on_ready(up)

        channel = aio_channel(
            address,
            limits=self._config.listen.limits,
            tls=target.tls,
            token=target.token,
            insecure=target.insecure,
        )
        return TargetLink(
            address,
            channel,
            self._config.listen.limits.max_message_bytes,
            self._fingerprint,
            self._drafter.name,
            lambda: wire_fingerprint.token_digests(self._tokens),
            changed,
            self._config.link,
        )

    async def close(self) -> None:
        """Stops serving at once."""
        assert self.server is not None
        await self._pool.close()
        await self.server.stop(0.0)
        self._thread.stop()

    def _on_drafter(self, healthy: bool) -> None:
        # whoever brings its own targets has other ways to them; for clients of ours, slow is better than gone
        if self._link is None and self.server is not None:
            self.server.set_serving(healthy)

    def _on_link(self, up: bool) -> None:
        if self.server is not None:
            self.server.set_serving(up)


def load(config: DraftConfig) -> DraftApp:
    """Loads tokenizer and drafter and builds the process.

    Raises:
        DraftproofError: the port is taken, a setting is wrong, or the model can't be loaded.
    """
    config.listen.check()
    check_drafter(config.drafter)
    check_tree(config.tree)
    encode = encoder(config.q_encoding, config.lattice_entries, config.lattice_bits)
    # transformers alone takes seconds to import; an app over another engine does without
    from draftproof.engine.engine import TransformersEngine
    from draftproof.engine.loading import load_engine, load_tokenizer
    from draftproof.engine.updating import WeightsLoader

    tokenizer = load_tokenizer(config.model)
    if config.drafter == "ngram":
        copier = None if config.replay else Copier(2, 4, alone=True)
        return DraftApp(_replaying(NgramDrafter(), config), tokenizer, tokenizer.vocab_size, config, copier=copier)
    thread = ModelThread("draft")
    engine = thread.call(load_engine, config.model, tokenizer=tokenizer)
    log.info("model loaded", model=engine.name, slots=engine.slots, kv_budget_mb=round(engine.kv_bytes / 2**20))
    # llama.cpp reads its weights from a file of its own
    loader = WeightsLoader(engine, tokenizer, config.model) if isinstance(engine, TransformersEngine) else unsupported
    drafter = ModelDrafter(
        engine,
        encode,
        recalls=config.drafter == "hybrid",
        shape=TreeShape(config.tree, config.lattice_entries, config.lattice_bits),
    )
    # what earlier outputs go on with comes before what the text itself does
    copier = Copier() if config.drafter == "hybrid" and not config.replay else None
    return DraftApp(_replaying(drafter, config), tokenizer, engine.vocab_size, config, loader, copier, thread)


def _replaying(drafter: Drafter, config: DraftConfig) -> Drafter:
    return ReplayDrafter(drafter, config.replay) if config.replay else drafter
