"""A target and a draft as two processes without an orchestrator: their command lines."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from draftproof.cli.cluster import flags
from draftproof.cli.stack import Service


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoServices:
    """None leaves a setting to the service's own default."""

    model: str | None = None
    slots: int | None = None
    queue_limit: int | None = None
    drafter: str | None = None
    draft_model: str | None = None
    port: int = 0
    target_port: int = 0
    metrics_port: int | None = None
    target_metrics_port: int | None = None
    grace: float | None = None

    def target(self) -> Service:
        """The target server."""
        words = flags(
            model=self.model,
            slots=self.slots,
            queue_limit=self.queue_limit,
            port=self.target_port,
            metrics_port=self.target_metrics_port,
            grace=self.grace,
            log_format="json",
        )
        return Service("target", [sys.executable, "-m", "target_service", *words])

    def draft(self, target_address: str) -> Service:
        """The draft server. Prompt lookup takes the target's tokens, whatever the target."""
        words = flags(
            target=target_address,
            drafter=self.drafter,
            model=self.draft_model or self.model,
            port=self.port,
            metrics_port=self.metrics_port,
            grace=self.grace,
            log_format="json",
        )
        return Service("draft", [sys.executable, "-m", "draft_service", *words])
