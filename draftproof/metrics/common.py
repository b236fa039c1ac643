"""Names, buckets and labels that the metrics of all processes share."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge

PREFIX = "draftproof"
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
ENCODINGS = ("lattice", "sparse", "dense", "one_hot", "none")


def create_children(counter: Counter, label: str, values: Iterable[str]) -> None:
    """Creates the children, so that zeros exist before the first event."""
    for value in values:
        counter.labels(**{label: value})


def build_info(registry: CollectorRegistry, *, role: str, version: str, model: str, weights_sha256: bytes) -> None:
    """Exports what runs here, as labels of a gauge that is always 1."""
    info = Gauge(
        f"{PREFIX}_build_info",
        "Release, role, model and weights of this process; always 1.",
        ["version", "role", "model", "weights"],
        registry=registry,
    )
    info.labels(version=version, role=role, model=model, weights=weights_sha256.hex()[:16]).set(1)
