"""A cluster on this machine: its command line, the models it needs, and how far its start has come."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftproof.cli.stack import Service, ServiceError
from draftproof.errors import ModelLoadError


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCluster:
    """What `up` and `demo` start: an orchestrator that places workers on a Ray cluster of its own.

    None leaves a setting to the orchestrator's default.

    Attributes:
        model: target model.
        targets: target workers.
        drafts: draft workers.
        backend: transformers or llamacpp.
        drafter: auto, ngram, model or hybrid.
        draft_model: model of the drafter.
        draft_backend: its backend.
        port: of the front door.
        token: front door's bearer token.
    """

    model: str | None = None
    backend: str | None = None
    dtype: str | None = None
    device: str | None = None
    targets: int = 1
    drafts: int = 1
    slots: int | None = None
    max_context: int | None = None
    queue_limit: int | None = None
    threads: int | None = None
    draft_threads: int | None = None
    drafter: str | None = None
    draft_model: str | None = None
    q_encoding: str | None = None
    draft_backend: str | None = None
    gamma: int | None = None
    host: str = "127.0.0.1"
    port: int = 7500
    metrics_port: int | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    token: str | None = None
    insecure: bool = False
    grace: float | None = None

    def service(self) -> Service:
        """The orchestrator; it starts all the rest."""
        words = flags(
            ray_address="local",
            targets=self.targets,
            drafts=self.drafts,
            model=self.model,
            backend=self.backend,
            dtype=self.dtype,
            device=self.device,
            slots=self.slots,
            max_context=self.max_context,
            queue_limit=self.queue_limit,
            threads=self.threads,
            draft_threads=self.draft_threads,
            drafter=self.drafter,
            draft_model=self.draft_model,
            q_encoding=self.q_encoding,
            draft_backend=self.draft_backend,
            gamma=self.gamma,
            host=self.host,
            port=self.port,
            metrics_port=self.metrics_port,
            tls_cert=self.tls_cert,
            tls_key=self.tls_key,
            tls_ca=self.tls_ca,
            grace=self.grace,
            log_format="json",
        )
        command = [sys.executable, "-m", "orchestrator", *words, *(["--insecure"] if self.insecure else [])]
        # a token in the arguments would show in process lists
        return Service("cluster", command, {"DRAFTPROOF_ORCHESTRATOR_TOKEN": self.token} if self.token else {})

    def prepare_model(self) -> None:
        """Prepares the embedded model where it is wanted and missing, in a process of its own: this one stays small.

        Raises:
            ModelLoadError: it failed; what happened is on the terminal.
        """
        from draftproof.engine.config import EMBEDDED
        from draftproof.engine.embedded import is_prepared

        with_gguf = "llamacpp" in (self.backend, self.draft_backend)
        models = {self.model or EMBEDDED, self.draft_model or self.model or EMBEDDED}
        if EMBEDDED not in models or is_prepared(with_gguf=with_gguf):
            return
        command = [sys.executable, "-m", "draftproof.engine.embedded", *(["--gguf"] if with_gguf else [])]
        if subprocess.run(command, stdout=sys.stderr, check=False).returncode != 0:
            raise ModelLoadError(f"the embedded model {EMBEDDED} couldn't be prepared")


class Progress:
    """Follows the orchestrator's log until as many workers are ready as are wanted.

    The log is asked, not the server: with a certificate, asking takes a name that this process doesn't know.
    """

    def __init__(self, targets: int, drafts: int) -> None:
        self._wanted = {"target": targets, "draft": drafts}
        self._ready: set[str] = set()
        self._failure = ""

    def take(self, record: dict[str, Any]) -> None:
        """Takes a log record; from any thread."""
        event, worker = record.get("event"), str(record.get("worker", ""))
        if event == "worker":
            (self._ready.add if record.get("state") == "ready" else self._ready.discard)(worker)
        elif event == "worker failed to start":
            self._failure = f"{worker} did not start: {record.get('problem')}"
        elif event == "draft and target don't fit":
            self._failure = str(record.get("problem"))

    def is_complete(self, address: str) -> bool:
        """Whether all are ready.

        Raises:
            ServiceError: one of them can't be: trying again would not help, here where nothing else changes.
        """
        if self._failure:
            raise ServiceError(self._failure)
        ready = [name.rpartition("-")[0] for name in tuple(self._ready)]
        return all(ready.count(role) >= count for role, count in self._wanted.items())


def flags(**settings: object) -> list[str]:
    """Command-line words of the settings that are given."""
    return [
        word
        for name, value in settings.items()
        if value is not None
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]
