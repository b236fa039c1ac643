"""A cluster as `draftproof up` starts it: orchestrator, draft and target as processes on Ray, real models, loopback."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.cut_draft import cut_draft, garbage_draft
from draftproof.cli.cluster import LocalCluster, Progress
from draftproof.cli.measure import metrics_of, sums
from draftproof.cli.stack import Stack
from draftproof.cli.up import Relay, start
from draftproof.engine.config import EMBEDDED_DRAFT

START_SECONDS = 180.0
DRAFT_MODEL = EMBEDDED_DRAFT
"""Draft of the embedded pair: a name or folder as --draft-model takes it, or cut-N: the target's first N layers."""


@dataclass(frozen=True, slots=True)
class Running:
    """A cluster that serves.

    Attributes:
        address: of its front door.
        metrics: addresses of the workers' /metrics.
    """

    address: str
    metrics: tuple[str, ...]

    def read(self) -> dict[str, float]:
        """Sums of all series by sample name, over labels and workers."""
        return sums(self.metrics)


@contextmanager
def cluster(settings: LocalCluster, folder: Path) -> Iterator[Running]:
    """Starts a cluster on a free port and stops it with the block; `folder` takes drafts that are made for it."""
    settings = replace(settings, port=0, grace=1.0, draft_model=draft_folder(settings.draft_model, folder))
    settings.prepare_model()
    console = Console(stderr=True, highlight=False)
    relay = Relay(console, False, Progress(settings.targets, settings.drafts))
    with Stack(relay) as stack:
        address = start(stack, settings, relay, START_SECONDS, console)
        yield Running(address, metrics_of(address))


def draft_folder(name: str | None, folder: Path) -> str | None:
    """What --draft-model takes: drafts called cut-N or garbage are made first."""
    if name == "garbage":
        return str(garbage_draft(folder / name))
    if name is not None and name.startswith("cut-"):
        return str(cut_draft(folder / name, int(name.removeprefix("cut-"))))
    return name


def difference(before: Mapping[str, float], after: Mapping[str, float], name: str) -> float:
    """By how much a metric grew."""
    return after.get(name, 0.0) - before.get(name, 0.0)


def chat(prompt: str) -> dict[str, Any]:
    """A request's prompt as the one user message of a conversation."""
    return {"messages": [{"role": "user", "content": prompt}]}
