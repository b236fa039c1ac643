"""The command lines of the two services, and the model they need."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from draftproof.cli.stack import Service
from draftproof.errors import ModelLoadError


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalServices:
    """What `up` and `demo` start. None leaves a setting to the service's own default.

    Attributes:
        model: target model.
        port: of the draft server, the front door.
        target_port: of the target server.
        drafter: ngram or model.
        draft_model: model of the drafter.
        token: front door's bearer token.
    """

    model: str | None = None
    dtype: str | None = None
    device: str | None = None
    slots: int | None = None
    max_context: int | None = None
    queue_limit: int | None = None
    threads: int | None = None
    draft_threads: int | None = None
    drafter: str | None = None
    draft_model: str | None = None
    gamma: int | None = None
    host: str = "127.0.0.1"
    port: int = 7500
    target_port: int = 7600
    metrics_port: int | None = None
    target_metrics_port: int | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    token: str | None = None
    insecure: bool = False
    grace: float | None = None

    def target(self) -> Service:
        """The target server; it listens on loopback alone."""
        flags = _flags(
            model=self.model,
            dtype=self.dtype,
            device=self.device,
            slots=self.slots,
            max_context=self.max_context,
            queue_limit=self.queue_limit,
            threads=self.threads,
            host="127.0.0.1",
            port=self.target_port,
            metrics_port=self.target_metrics_port,
            grace=self.grace,
            log_format="json",
        )
        return Service("target", [sys.executable, "-m", "target_service", *flags])

    def draft(self, target_address: str) -> Service:
        """The draft server, the front door."""
        flags = _flags(
            target=target_address,
            drafter=self.drafter,
            model=self._draft_model(),
            gamma=self.gamma,
            threads=self.draft_threads,
            host=self.host,
            port=self.port,
            metrics_port=self.metrics_port,
            tls_cert=self.tls_cert,
            tls_key=self.tls_key,
            tls_ca=self.tls_ca,
            grace=self.grace,
            log_format="json",
        )
        command = [sys.executable, "-m", "draft_service", *flags, *(["--insecure"] if self.insecure else [])]
        return Service("draft", command, {"DRAFTPROOF_DRAFT_TOKEN": self.token} if self.token else {})

    def _draft_model(self) -> str | None:
        # prompt lookup takes the target's tokens, whatever the target
        return self.model if self.draft_model is None and self.drafter in (None, "ngram") else self.draft_model

    def prepare_model(self) -> None:
        """Prepares the embedded model where it is wanted and missing, in a process of its own: this one stays small.

        Raises:
            ModelLoadError: it failed; what happened is on the terminal.
        """
        from draftproof.engine.config import EMBEDDED
        from draftproof.engine.embedded import is_prepared

        wanted = {self.model or EMBEDDED, self._draft_model() or EMBEDDED}
        if is_prepared() or EMBEDDED not in wanted:
            return
        command = [sys.executable, "-m", "draftproof.engine.embedded"]
        if subprocess.run(command, stdout=sys.stderr, check=False).returncode != 0:
            raise ModelLoadError(f"the embedded model {EMBEDDED} couldn't be prepared")


def _flags(**settings: object) -> list[str]:
    return [
        word
        for name, value in settings.items()
        if value is not None
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]
