"""From builders and rules to the files that Grafana reads."""

from __future__ import annotations

from pathlib import Path

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from deploy.grafana.source import acceptance, alerts, latency

FOLDER = Path(__file__).parents[1]


def dashboards() -> dict[str, Dashboard]:
    """All dashboards by file name."""
    return {"acceptance.json": acceptance.dashboard(), "latency.json": latency.dashboard()}


def rendered() -> dict[Path, str]:
    """The text of every file that is made here."""
    encoder = JSONEncoder(sort_keys=True, indent=2)
    boards = {
        FOLDER / "dashboards" / name: encoder.encode(builder.build()) + "\n" for name, builder in dashboards().items()
    }
    return {**boards, FOLDER / "provisioning" / "alerting" / "draftproof.yml": alerts.rendered()}
