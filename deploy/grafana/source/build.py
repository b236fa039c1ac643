"""From builders to JSON."""

from __future__ import annotations

from pathlib import Path

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from deploy.grafana.source import acceptance, latency

FOLDER = Path(__file__).parents[1] / "dashboards"


def dashboards() -> dict[str, Dashboard]:
    """All dashboards by file name."""
    return {"acceptance.json": acceptance.dashboard(), "latency.json": latency.dashboard()}


def rendered() -> dict[str, str]:
    """Their JSON by file name."""
    encoder = JSONEncoder(sort_keys=True, indent=2)
    return {name: encoder.encode(builder.build()) + "\n" for name, builder in dashboards().items()}
