"""What a worker runs: built inside the worker, so that whoever places it needs neither torch nor a model."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from draftproof.engine.config import ModelConfig
from draftproof.rpc.server import RunningServer
from draftproof.serving.lifecycle import App
from draftproof.serving.options import ListenConfig
from orchestrator.mesh import Mesh


class Server(App, Protocol):
    """A draft or target process."""

    metrics_port: int | None
    server: RunningServer | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How to build a worker's server.

    Attributes:
        build: "module:function", called in the worker with its `ListenConfig` and the arguments.
        arguments: keyword arguments, pickled.
        weight: its share of a node's cores among the workers that weigh as much or more; 0: it runs no model.
    """

    build: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    weight: float = 1.0

    def cook(self, listen: ListenConfig) -> Server:
        """Builds the server; takes as long as its model takes to load.

        Raises:
            DraftproofError: it can't be built.
        """
        module, _, function = self.build.partition(":")
        server: Server = getattr(importlib.import_module(module), function)(listen, **self.arguments)
        return server


def target_recipe(model: ModelConfig, **verifier: Any) -> Recipe:
    """A target."""
    return Recipe(build="orchestrator.recipes:build_target", arguments={"model": model, "verifier": verifier})


def draft_recipe(drafter: str, model: ModelConfig, mesh: Mesh, **settings: Any) -> Recipe:
    """A draft that takes its targets from the orchestrator."""
    return Recipe(
        build="orchestrator.recipes:build_draft",
        arguments={"drafter": drafter, "model": model, "mesh": mesh, "settings": settings},
        weight=0.0 if drafter == "ngram" else 0.5,
    )


def build_target(listen: ListenConfig, model: ModelConfig, verifier: Mapping[str, Any]) -> Server:
    """Runs in the worker."""
    from target_service.app import TargetConfig, load
    from target_service.schedule import PassLimits
    from target_service.verifier import VerifierConfig

    passes = PassLimits(merge=not model.batch_invariant)
    return load(TargetConfig(model=model, listen=listen, verifier=VerifierConfig(passes=passes, **verifier)))


def build_draft(
    listen: ListenConfig, drafter: str, model: ModelConfig, mesh: Mesh, settings: Mapping[str, Any]
) -> Server:
    """Runs in the worker."""
    from draft_service.app import DraftConfig, TargetAddress, load

    target = TargetAddress(address="", tls=mesh.tls, token=mesh.token, insecure=mesh.insecure)
    return load(DraftConfig(drafter=drafter, model=model, listen=listen, target=target, **settings))
