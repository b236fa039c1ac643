"""The target process: engine, verifier and two gRPC services on one port."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import structlog
from prometheus_client import CollectorRegistry

from draftproof.engine.config import ModelConfig
from draftproof.engine.interface import Engine, Tokenizer, Update
from draftproof.errors import ConfigError
from draftproof.metrics.target import TargetMetrics
from draftproof.rpc.server import RunningServer, Service
from draftproof.serving import process
from draftproof.serving.drafting import NoDrafting
from draftproof.serving.generation import GenerationConfig, GenerationServicer, Generator
from draftproof.serving.model_thread import ModelThread
from draftproof.serving.options import ListenConfig
from draftproof.serving.weights import Loader, WeightsServicer, next_version, unsupported
from draftproof.v1 import generation_pb2_grpc, orchestrator_pb2, target_pb2_grpc, weights_pb2, weights_pb2_grpc
from draftproof.version import VERSION
from target_service.local import LocalPort
from target_service.stream import Identity, TargetServicer
from target_service.verifier import Verifier, VerifierConfig

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetConfig:
    """Settings of a target process.

    Attributes:
        allow_weight_updates: whether clients may change its weights.
    """

    model: ModelConfig = field(default_factory=ModelConfig)
    listen: ListenConfig = field(default_factory=ListenConfig)
    verifier: VerifierConfig = field(default_factory=VerifierConfig)
    allow_weight_updates: bool = False


class TargetApp:
    """Serves TargetService and GenerationService (target-only) for one engine."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        config: TargetConfig,
        load_weights: Loader = unsupported,
        thread: ModelThread | None = None,
    ) -> None:
        if tokenizer.vocab_size < engine.vocab_size:
            raise ConfigError("model", f"the tokenizer knows {tokenizer.vocab_size} of {engine.vocab_size} tokens")
        self._config = config
        self.registry = CollectorRegistry()
        self._thread = thread or ModelThread("model")
        metrics = TargetMetrics(self.registry, config.verifier.max_gamma)
        metrics.build_info(role="target", version=VERSION, model=engine.name, weights_sha256=engine.weights_sha256)
        self._verifier = Verifier(engine, tokenizer, config.verifier, metrics, self._thread, self._on_health)
        tokens = process.vocabulary(tokenizer, engine.vocab_size)
        fingerprint = process.fingerprint(tokens, engine.name, engine.weights_sha256)

        def changed(version: int, sha256: bytes) -> None:
            # one object, which all who are asked for it read
            fingerprint.weights_version, fingerprint.weights_sha256 = version, sha256
            metrics.build_info(role="target", version=VERSION, model=engine.name, weights_sha256=sha256)

        self._verifier.weights.on_change = changed
        self._weights = WeightsServicer(
            orchestrator_pb2.WORKER_ROLE_TARGET, load_weights, self._change, allowed=config.allow_weight_updates
        )
        limits = config.listen.limits
        self._stream = TargetServicer(self._verifier, Identity(fingerprint, tokens), metrics, limits.max_message_bytes)
        self._generator = Generator(
            NoDrafting(),
            tokenizer,
            GenerationConfig(
                role="target",
                default_gamma=0,
                max_sessions=engine.slots + config.verifier.queue_limit,
                slots=engine.slots,
                max_message_bytes=limits.max_message_bytes,
            ),
        )
        self._generation = GenerationServicer(self._generator, LocalPort(self._verifier, fingerprint))
        self.metrics_port: int | None = None
        self.server: RunningServer | None = None

    async def start(self) -> None:
        """Listens; ready at once."""
        self.metrics_port = self._generation.metrics_port = process.serve_metrics(self.registry, self._config.listen)
        self.server = await process.listen(
            [
                Service(
                    "draftproof.v1.TargetService", target_pb2_grpc.add_TargetServiceServicer_to_server, self._stream
                ),
                Service(
                    "draftproof.v1.GenerationService",
                    generation_pb2_grpc.add_GenerationServiceServicer_to_server,
                    self._generation,
                ),
                Service(
                    "draftproof.v1.WeightsService",
                    weights_pb2_grpc.add_WeightsServiceServicer_to_server,
                    self._weights,
                ),
            ],
            self._config.listen,
        )
        self.server.set_serving(True)
        log.info("serving", address=str(self.server.address))

    async def _change(self, update: Update, version: int | None, restart: bool) -> weights_pb2.UpdatedServer:
        weights = self._verifier.weights
        restarted = await weights.change(update, next_version(weights.version, version), restart=restart)
        return weights_pb2.UpdatedServer(
            weights_version=weights.version, weights_sha256=weights.sha256, restarted=restarted
        )

    async def run(self) -> None:
        """Runs the batching loop."""
        await self._verifier.run()

    async def drain(self) -> None:
        """NOT_SERVING, no new sessions, the grace period for running ones, then hand-back."""
        assert self.server is not None
        self.server.start_draining()
        grace = self._config.listen.grace
        await asyncio.gather(self._verifier.drain(grace), self._generator.drain(grace))
        self._stream.end_streams()
        await self.server.stop(1.0)
        self._thread.stop()

    async def close(self) -> None:
        """Stops serving at once."""
        assert self.server is not None
        await self.server.stop(0.0)
        self._thread.stop()

    def _on_health(self, healthy: bool) -> None:
        if self.server is not None:
            self.server.set_serving(healthy)


def load(config: TargetConfig) -> TargetApp:
    """Loads the model and builds the process.

    Raises:
        DraftproofError: the port is taken, or the model can't be loaded.
    """
    config.listen.check()
    # transformers alone takes seconds to import; an app over another engine does without
    from draftproof.engine.engine import TransformersEngine
    from draftproof.engine.loading import load_engine, load_tokenizer
    from draftproof.engine.updating import WeightsLoader

    tokenizer = load_tokenizer(config.model)
    thread = ModelThread("model")
    engine = thread.call(load_engine, config.model, tokenizer=tokenizer)
    log.info(
        "model loaded",
        model=engine.name,
        slots=engine.slots,
        max_context=engine.max_context,
        kv_budget_mb=round(engine.kv_bytes / 2**20),
    )
    # llama.cpp reads its weights from a file of its own
    loader = WeightsLoader(engine, tokenizer, config.model) if isinstance(engine, TransformersEngine) else unsupported
    return TargetApp(engine, tokenizer, config, loader, thread)
