"""Commands that start servers or get models ready: their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftproof.cli import options

DEMO_PROMPT = (
    "Write a Python function that returns the n-th Fibonacci number, then a second one that returns a list of them."
)

Wait = Annotated[float, typer.Option(envvar="DRAFTPROOF_WAIT", help="Seconds each service gets to start.")]
Logs = Annotated[bool, typer.Option("--logs", envvar="DRAFTPROOF_LOGS", help="Show all log lines of the services.")]
_MODELS = "Models"
_NETWORK = "Network"
Model = Annotated[
    str | None,
    typer.Option(
        envvar="DRAFTPROOF_ORCHESTRATOR_MODEL",
        help="Target: Hugging Face id, folder or .gguf file; unset: the embedded smollm2-135m-instruct.",
        rich_help_panel=_MODELS,
    ),
]
Backend = Annotated[
    str | None,
    typer.Option(
        envvar="DRAFTPROOF_ORCHESTRATOR_BACKEND",
        help="transformers, or llamacpp for .gguf files as they are stored.",
        rich_help_panel=_MODELS,
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        envvar="DRAFTPROOF_ORCHESTRATOR_DTYPE",
        help="auto, float32, bfloat16, float16, or int8 weights.",
        rich_help_panel=_MODELS,
    ),
]
Device = Annotated[
    str | None,
    typer.Option(envvar="DRAFTPROOF_ORCHESTRATOR_DEVICE", help="auto, cpu, cuda or cuda:n.", rich_help_panel=_MODELS),
]
Drafter = Annotated[
    str | None,
    typer.Option(
        envvar="DRAFTPROOF_ORCHESTRATOR_DRAFTER", help="auto, ngram, model or hybrid.", rich_help_panel=_MODELS
    ),
]
DraftModel = Annotated[
    str | None,
    typer.Option(envvar="DRAFTPROOF_ORCHESTRATOR_DRAFT_MODEL", help="Model of the drafter.", rich_help_panel=_MODELS),
]
QEncoding = Annotated[
    str | None,
    typer.Option(
        envvar="DRAFTPROOF_ORCHESTRATOR_Q_ENCODING",
        help="How the drafter's distributions travel: lattice, sparse or dense.",
        rich_help_panel=_MODELS,
    ),
]
DraftBackend = Annotated[
    str | None,
    typer.Option(
        envvar="DRAFTPROOF_ORCHESTRATOR_DRAFT_BACKEND",
        help="Backend of the draft model; unset: the target's where the model is, too, else transformers.",
        rich_help_panel=_MODELS,
    ),
]
UpGamma = Annotated[
    int | None,
    typer.Option(
        envvar="DRAFTPROOF_ORCHESTRATOR_GAMMA", min=0, help="Proposals per round by default.", rich_help_panel=_MODELS
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        envvar="DRAFTPROOF_ORCHESTRATOR_THREADS", min=1, help="CPU threads of the target.", rich_help_panel=_MODELS
    ),
]
DraftThreads = Annotated[
    int | None,
    typer.Option(
        envvar="DRAFTPROOF_ORCHESTRATOR_DRAFT_THREADS", min=1, help="CPU threads of the draft.", rich_help_panel=_MODELS
    ),
]


def up(
    model: Model = None,
    backend: Backend = None,
    dtype: Dtype = None,
    device: Device = None,
    targets: Annotated[int, typer.Option(min=1, help="Target workers.", rich_help_panel=_MODELS)] = 1,
    drafts: Annotated[int, typer.Option(min=0, help="Draft workers.", rich_help_panel=_MODELS)] = 1,
    slots: Annotated[
        int | None,
        typer.Option(
            envvar="DRAFTPROOF_ORCHESTRATOR_SLOTS",
            min=1,
            help="Requests at once on each target.",
            rich_help_panel=_MODELS,
        ),
    ] = None,
    max_context: Annotated[
        int | None,
        typer.Option(
            envvar="DRAFTPROOF_ORCHESTRATOR_MAX_CONTEXT", min=2, help="Tokens per slot.", rich_help_panel=_MODELS
        ),
    ] = None,
    queue_limit: Annotated[
        int | None,
        typer.Option(
            envvar="DRAFTPROOF_ORCHESTRATOR_QUEUE_LIMIT",
            min=0,
            help="Requests that wait for their turn; one more is refused.",
            rich_help_panel=_MODELS,
        ),
    ] = None,
    threads: Threads = None,
    draft_threads: DraftThreads = None,
    drafter: Drafter = None,
    draft_model: DraftModel = None,
    q_encoding: QEncoding = None,
    draft_backend: DraftBackend = None,
    gamma: UpGamma = None,
    host: Annotated[
        str,
        typer.Option(envvar="DRAFTPROOF_ORCHESTRATOR_HOST", help="Where clients connect.", rich_help_panel=_NETWORK),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            envvar="DRAFTPROOF_ORCHESTRATOR_PORT", min=0, max=65535, help="Port for clients.", rich_help_panel=_NETWORK
        ),
    ] = 7500,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            envvar="DRAFTPROOF_ORCHESTRATOR_METRICS_PORT",
            help="Port of /metrics and of /sd, which lists the workers' for Prometheus.",
            rich_help_panel=_NETWORK,
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            envvar="DRAFTPROOF_ORCHESTRATOR_TLS_CERT", help="Certificate shown to clients.", rich_help_panel=_NETWORK
        ),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(envvar="DRAFTPROOF_ORCHESTRATOR_TLS_KEY", help="Its key.", rich_help_panel=_NETWORK)
    ] = None,
    tls_ca: Annotated[
        Path | None,
        typer.Option(
            envvar="DRAFTPROOF_ORCHESTRATOR_TLS_CA",
            help="Authority of clients' certificates; makes them mandatory.",
            rich_help_panel=_NETWORK,
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="DRAFTPROOF_ORCHESTRATOR_TOKEN", help="Bearer token clients must show.", rich_help_panel=_NETWORK
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            envvar="DRAFTPROOF_ORCHESTRATOR_INSECURE",
            help="Allow plaintext beyond loopback.",
            rich_help_panel=_NETWORK,
        ),
    ] = False,
    grace: Annotated[float | None, typer.Option(min=0.0, help="Seconds running requests get when stopping.")] = None,
    wait: Wait = 300.0,
    logs: Logs = False,
) -> None:
    """Start a cluster on this machine: orchestrator, targets and drafts on Ray; Ctrl-C stops all of it.

    Unset options are the orchestrator's own defaults: see python -m orchestrator --help.
    """
    from draftproof.cli import up as command
    from draftproof.cli.cluster import LocalCluster

    cluster = LocalCluster(
        model=model,
        backend=backend,
        dtype=dtype,
        device=device,
        targets=targets,
        drafts=drafts,
        slots=slots,
        max_context=max_context,
        queue_limit=queue_limit,
        threads=threads,
        draft_threads=draft_threads,
        drafter=drafter,
        draft_model=draft_model,
        q_encoding=q_encoding,
        draft_backend=draft_backend,
        gamma=gamma,
        host=host,
        port=port,
        metrics_port=metrics_port,
        tls_cert=tls_cert,
        tls_key=tls_key,
        tls_ca=tls_ca,
        token=token,
        insecure=insecure,
        grace=grace,
    )
    command.run(cluster, wait=wait, logs=logs)


def prepare(
    models: Annotated[list[str] | None, typer.Argument(help="Hugging Face ids; none: the embedded model.")] = None,
) -> None:
    """Download and prepare models now rather than on the first start."""
    from draftproof.cli import prepare as command

    command.run(models or [])


def demo(
    prompt: Annotated[str, typer.Argument(help="What to answer.")] = DEMO_PROMPT,
    max_tokens: options.MaxTokens = 128,
    temperature: options.Temperature = 0.0,
    seed: options.Seed = None,
    gamma: options.Gamma = None,
    model: Model = None,
    backend: Backend = None,
    dtype: Dtype = None,
    device: Device = None,
    drafter: Drafter = None,
    draft_model: DraftModel = None,
    q_encoding: QEncoding = None,
    draft_backend: DraftBackend = None,
    threads: Threads = None,
    draft_threads: DraftThreads = None,
    wait: Wait = 300.0,
    logs: Logs = False,
) -> None:
    """Answer one prompt with speculation and by the target alone, and compare. Starts and stops its own servers."""
    from draftproof.cli import demo as command
    from draftproof.cli.cluster import LocalCluster

    cluster = LocalCluster(
        model=model,
        backend=backend,
        dtype=dtype,
        device=device,
        drafter=drafter,
        draft_model=draft_model,
        q_encoding=q_encoding,
        draft_backend=draft_backend,
        threads=threads,
        draft_threads=draft_threads,
        port=0,
        grace=1.0,
    )
    sampling = options.sampling_fields(max_tokens=max_tokens, temperature=temperature, seed=seed, gamma=gamma)
    command.run(cluster, prompt=prompt, sampling=sampling, wait=wait, logs=logs)
