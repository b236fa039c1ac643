"""Renews the tables of docs/metrics.md from the definitions: `python docs/metrics.py`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry

from draftproof.metrics.cluster import OrchestratorMetrics
from draftproof.metrics.draft import DraftMetrics
from draftproof.metrics.target import TargetMetrics

PAGE = Path(__file__).with_name("metrics.md")
BEGIN, END = "<!-- begin: python docs/metrics.py -->", "<!-- end -->"
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of one kind of process, as it is exported."""

    process: str
    name: str
    kind: str
    labels: tuple[str, ...]
    help: str

    @property
    def series(self) -> list[str]:
        """The names that PromQL knows it by."""
        return [self.name + suffix for suffix in SUFFIXES[self.kind]]


def catalogue() -> Iterator[Metric]:
    """Every metric of every kind of process."""
    target, draft, orchestrator = (CollectorRegistry() for _ in range(3))
    TargetMetrics(target, max_gamma=4)
    DraftMetrics(draft)
    OrchestratorMetrics(orchestrator)
    for process, registry in (("target", target), ("draft", draft), ("orchestrator", orchestrator)):
        for collector in registry._collector_to_names:
            for family in collector.collect():
                yield Metric(process, family.name, family.type, tuple(collector._labelnames), family.documentation)


def tables() -> str:
    """One table per kind of process."""
    parts = []
    for process in ("target", "draft", "orchestrator"):
        rows = [
            f"| `{metric.name}{'_total' if metric.kind == 'counter' else ''}` | {metric.kind} |"
            f" {', '.join(metric.labels) or '–'} | {metric.help.replace('|', chr(92) + '|')} |"
            for metric in sorted(catalogue(), key=lambda m: m.name)
            if metric.process == process
        ]
        head = [
            f"### {process.capitalize()}",
            "",
            "| Metric | Kind | Labels | Meaning and formula |",
            "|---|---|---|---|",
        ]
        parts.append("\n".join([*head, *rows]))
    return "\n\n".join(parts)


def renewed(page: str) -> str:
    """The page with its tables renewed."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text()))
