"""`python -m orchestrator`: command line of the orchestrator."""

from __future__ import annotations

from pathlib import Path

import typer

from draft_service.settings import check_drafter, check_encoding, choose
from draftproof.rpc.options import RpcLimits
from draftproof.serving import logs, options
from draftproof.serving.lifecycle import App, main
from orchestrator.mesh import Mesh
from orchestrator.supervisor import wanted
from orchestrator.workers import Role

_RAY = "Ray"
_TARGETS = "Target workers"
_DRAFTS = "Draft workers"
_MESH = "Links to workers"

cli = typer.Typer(
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"auto_envvar_prefix": "DRAFTPROOF_ORCHESTRATOR", "help_option_names": ["-h", "--help"]},
)


@cli.command()
def orchestrate(
    ray_address: str = typer.Option(
        "local",
        help="Ray cluster to place workers on: host:port, auto, local (one on this machine), or none.",
        rich_help_panel=_RAY,
    ),
    targets: str = typer.Option(
        "1", help="Target workers to place, or auto: as many as fit.", rich_help_panel=_TARGETS
    ),
    drafts: str = typer.Option("1", help="Draft workers to place, or auto: as many as fit.", rich_help_panel=_DRAFTS),
    attach_target: list[str] = typer.Option(
        [], help="Address of a target that runs on its own; repeatable.", rich_help_panel=_TARGETS
    ),
    attach_draft: list[str] = typer.Option(
        [], help="Address of a draft that runs on its own; repeatable.", rich_help_panel=_DRAFTS
    ),
    target_resource: str = typer.Option(
        "", help="Custom Ray resource that target nodes offer.", rich_help_panel=_TARGETS
    ),
    draft_resource: str = typer.Option("", help="Custom Ray resource that draft nodes offer.", rich_help_panel=_DRAFTS),
    target_gpus: float = typer.Option(0.0, min=0.0, help="GPUs of a target worker.", rich_help_panel=_TARGETS),
    draft_gpus: float = typer.Option(
        0.0, min=0.0, help="GPUs of a draft worker; fractions share one.", rich_help_panel=_DRAFTS
    ),
    model: options.Model = "smollm2-135m-instruct",
    backend: options.BackendOption = "transformers",
    dtype: options.DTypeOption = "auto",
    device: options.Device = "auto",
    revision: options.Revision = None,
    batch_invariant: bool = typer.Option(
        False,
        "--batch-invariant",
        help="Bit-equal results whatever the batch, at the price of speed.",
        rich_help_panel=_TARGETS,
    ),
    device_map: str | None = typer.Option(
        None, help="Spread the target's layers over devices.", rich_help_panel=_TARGETS
    ),
    slots: int = typer.Option(8, min=1, help="Sessions whose KV a target keeps at once.", rich_help_panel=_TARGETS),
    max_context: options.MaxContext = None,
    threads: int | None = typer.Option(
        None, min=1, help="CPU threads of a target's forward pass.", rich_help_panel=_TARGETS
    ),
    drafter: str = typer.Option(
        "auto",
        help="ngram (prompt lookup), model, hybrid (both), or auto: a model that is named, the embedded target's own"
        " draft as a hybrid, else ngram.",
        rich_help_panel=_DRAFTS,
    ),
    draft_model: str | None = typer.Option(
        None, help="Model of the drafter; unset: the target's, unless the drafter is auto.", rich_help_panel=_DRAFTS
    ),
    draft_backend: str | None = typer.Option(
        None,
        help="Backend of the draft model; unset: the target's where the model is, too, else transformers.",
        rich_help_panel=_DRAFTS,
    ),
    q_encoding: str = typer.Option("lattice", help="lattice, sparse or dense.", rich_help_panel=_DRAFTS),
    draft_threads: int | None = typer.Option(
        None, min=1, help="CPU threads of a draft's forward pass.", rich_help_panel=_DRAFTS
    ),
    gamma: int = typer.Option(4, min=0, help="Proposals per round to begin with.", rich_help_panel=_DRAFTS),
    adaptive: bool = typer.Option(True, help="Let gamma follow what rounds show.", rich_help_panel=_DRAFTS),
    draft_ahead: bool | None = typer.Option(
        None,
        "--draft-ahead/--no-draft-ahead",
        help="Draft the next block while the verdict on one is out; unset: where that saves time.",
        rich_help_panel=_DRAFTS,
    ),
    worker_host: str = typer.Option(
        "127.0.0.1", help="Address that workers listen on; node: that of their node.", rich_help_panel=_RAY
    ),
    worker_tls_cert: Path | None = typer.Option(
        None, help="Certificate of every worker, PEM; also shown to it.", rich_help_panel=_MESH
    ),
    worker_tls_key: Path | None = typer.Option(None, help="Its private key, PEM.", rich_help_panel=_MESH),
    worker_tls_ca: Path | None = typer.Option(
        None,
        help="Authority of workers' certificates, PEM; setting it makes every link mutual TLS.",
        rich_help_panel=_MESH,
    ),
    worker_token: str | None = typer.Option(None, help="Bearer token that workers ask for.", rich_help_panel=_MESH),
    worker_insecure: bool = typer.Option(
        False, "--worker-insecure", help="Allow plaintext to workers beyond loopback.", rich_help_panel=_MESH
    ),
    worker_metrics: bool = typer.Option(True, help="Workers serve /metrics on free ports; /sd lists them."),
    queue_limit: int = typer.Option(256, min=0, help="Most requests that wait for admission; one more is refused."),
    round_timeout: float = typer.Option(10.0, min=0.1, help="Seconds a worker may be silent between rounds."),
    open_timeout: float = typer.Option(30.0, min=0.1, help="Seconds until a worker must have opened a session."),
    target_wait: float = typer.Option(
        30.0, min=0.0, help="Seconds a request waits for a target to be ready before it fails."
    ),
    draft_wait: float = typer.Option(
        2.0,
        min=0.0,
        help="Seconds a seeded request waits for a draft of the weights it has met before it does without.",
    ),
    probe_interval: float = typer.Option(0.5, min=0.01, help="Seconds between probes of a worker."),
    lost_after: float = typer.Option(5.0, min=0.1, help="Seconds without a good answer after which it is replaced."),
    host: options.Host = "127.0.0.1",
    port: int = typer.Option(7500, min=0, max=65535, help="Port to listen on; 0: a free one."),
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    tls_ca: options.TlsCa = None,
    token: options.Token = None,
    insecure: options.Insecure = False,
    max_message_bytes: options.MaxMessageBytes = options.LIMITS.max_message_bytes,
    keepalive: options.Keepalive = options.LIMITS.keepalive_seconds,
    grace: options.Grace = 30.0,
    metrics_port: options.MetricsPort = None,
    log_level: options.LogLevel = "info",
    log_format: options.LogFormat = "auto",
) -> None:
    """Places draft and target workers, routes requests to them and carries them over failures.

    Every option can be set by an environment variable: --queue-limit is DRAFTPROOF_ORCHESTRATOR_QUEUE_LIMIT.
    """
    logs.configure(log_level, log_format)

    def build() -> App:
        kind = options.dtype(dtype)
        check_drafter(drafter)
        check_encoding(q_encoding)
        limits = RpcLimits(max_message_bytes=max_message_bytes, keepalive_seconds=keepalive)
        listen = options.ListenConfig(
            host=host,
            port=port,
            tls=options.tls_files(tls_cert, tls_key, tls_ca),
            token=token,
            insecure=insecure,
            limits=limits,
            grace=grace,
            metrics_port=metrics_port,
        )
        listen.check()
        mesh = Mesh(
            tls=options.tls_files(worker_tls_cert, worker_tls_key, worker_tls_ca),
            token=worker_token,
            insecure=worker_insecure,
        )
        counts = {Role.TARGET: wanted("targets", targets), Role.DRAFT: wanted("drafts", drafts)}
        # heavy imports wait until --help and wrong options are dealt with
        from draftproof.engine.config import ModelConfig
        from orchestrator.app import OrchestratorConfig, load
        from orchestrator.attempt import Patience
        from orchestrator.probe import ProbeConfig
        from orchestrator.ray_placement import Crew, RayConfig, Resources
        from orchestrator.recipes import draft_recipe, target_recipe
        from orchestrator.relay import RelayConfig
        from orchestrator.supervisor import SupervisorConfig

        # an empty one is what a compose file makes of a variable that isn't set
        chosen, drafts_with = choose(drafter, model, draft_model or None)
        draft_is_targets = drafts_with == model and not draft_model
        crews = {
            Role.TARGET: Crew(
                recipe=target_recipe(
                    ModelConfig(
                        model=model,
                        backend=options.backend(backend),
                        dtype=kind,
                        device=device,
                        device_map=device_map,
                        revision=revision,
                        batch_invariant=batch_invariant,
                        slots=slots,
                        max_context=max_context,
                        threads=threads,
                    )
                ),
                resources=Resources(num_gpus=target_gpus, custom=target_resource),
                count=counts[Role.TARGET],
            ),
            Role.DRAFT: Crew(
                recipe=draft_recipe(
                    chosen,
                    ModelConfig(
                        model=drafts_with,
                        backend=options.backend(draft_backend or (backend if draft_is_targets else "transformers")),
                        dtype=kind,
                        device=device,
                        slots=16,
                        threads=draft_threads,
                    ),
                    mesh,
                    gamma=gamma,
                    adaptive=adaptive,
                    ahead=draft_ahead,
                    q_encoding=q_encoding,
                ),
                resources=Resources(num_gpus=draft_gpus, custom=draft_resource),
                count=counts[Role.DRAFT],
            ),
        }
        return load(
            OrchestratorConfig(
                supervisor=SupervisorConfig(
                    wanted=counts,
                    attached={Role.TARGET: tuple(attach_target), Role.DRAFT: tuple(attach_draft)},
                ),
                listen=listen,
                relay=RelayConfig(
                    patience=Patience(opening=open_timeout, round=round_timeout),
                    no_worker=target_wait,
                    same_draft=draft_wait,
                ),
                probes=ProbeConfig(interval=probe_interval, lost_after=lost_after),
                queue_limit=queue_limit,
                mesh=mesh,
            ),
            RayConfig(
                crews=crews,
                listen=options.ListenConfig(
                    host="" if worker_host == "node" else worker_host,
                    tls=mesh.tls,
                    token=mesh.token,
                    insecure=mesh.insecure,
                    limits=limits,
                    grace=grace,
                    metrics_port=0 if worker_metrics else None,
                ),
                address=ray_address,
                log_level=log_level,
            ),
        )

    main(build)


if __name__ == "__main__":
    cli()
