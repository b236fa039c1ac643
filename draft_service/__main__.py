"""`python -m draft_service`: command line of the draft server."""

from __future__ import annotations

from pathlib import Path

import typer

from draft_service.settings import check_drafter, check_encoding, choose, tree_widths
from draftproof.rpc.options import RpcLimits
from draftproof.rpc.security import Address, channel_credentials
from draftproof.serving import logs, options
from draftproof.serving.lifecycle import App, main

_TARGET = "Target"

cli = typer.Typer(
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"auto_envvar_prefix": "DRAFTPROOF_DRAFT", "help_option_names": ["-h", "--help"]},
)


@cli.command()
def draft(
    target: str = typer.Option("127.0.0.1:7600", help="Address of the target.", rich_help_panel=_TARGET),
    target_tls_ca: Path | None = typer.Option(
        None, help="Authority of the target's certificate, PEM; setting it dials with TLS.", rich_help_panel=_TARGET
    ),
    target_tls_cert: Path | None = typer.Option(
        None, help="Our certificate for mutual TLS, PEM.", rich_help_panel=_TARGET
    ),
    target_tls_key: Path | None = typer.Option(None, help="Its private key, PEM.", rich_help_panel=_TARGET),
    target_token: str | None = typer.Option(
        None, help="Bearer token that the target asks for.", rich_help_panel=_TARGET
    ),
    reconnect_timeout: float = typer.Option(
        1.0, min=0.0, help="Seconds a running request waits for a lost target.", rich_help_panel=_TARGET
    ),
    drafter: str = typer.Option(
        "auto",
        help="ngram (prompt lookup, no model), model, hybrid (both), or auto: the embedded model's own draft as a"
        " hybrid, else ngram.",
    ),
    replay: int = typer.Option(
        0, min=0, help="Remember this many outputs of each prompt, and draft from them when it comes again."
    ),
    model: options.Model = "smollm2-135m-instruct",
    backend: options.BackendOption = "transformers",
    dtype: options.DTypeOption = "auto",
    device: options.Device = "auto",
    revision: options.Revision = None,
    slots: int = typer.Option(16, min=1, help="Sequences whose KV the draft model keeps at once."),
    max_context: options.MaxContext = None,
    threads: options.Threads = None,
    gamma: int = typer.Option(4, min=0, help="Proposals per round where a request doesn't say."),
    tree: str = typer.Option(
        "3,2,1",
        help="Children of each node by depth, for requests under the tree rule; gamma caps the depth.",
    ),
    adaptive: bool = typer.Option(True, help="Let gamma follow what rounds show."),
    draft_ahead: bool | None = typer.Option(
        None,
        "--draft-ahead/--no-draft-ahead",
        help="Draft the next block while the verdict on one is out; unset: where that saves time.",
    ),
    q_encoding: str = typer.Option("lattice", help="lattice, sparse or dense."),
    lattice_entries: int = typer.Option(128, min=1, help="Most tokens a lattice keeps."),
    lattice_bits: int = typer.Option(10, min=1, max=24, help="Counts of a lattice sum to 2 to this power."),
    allow_weight_updates: options.AllowWeightUpdates = False,
    max_sessions: int = typer.Option(512, min=1, help="Most requests at once; one more is refused."),
    stall_timeout: float = typer.Option(
        30.0, min=0.1, help="Seconds a step of the drafter may take before requests go on without proposals."
    ),
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
    """Proposes tokens here, has them verified on a target, and streams the text to clients.

    Every option can be set by an environment variable: --lattice-bits is DRAFTPROOF_DRAFT_LATTICE_BITS.
    """
    logs.configure(log_level, log_format)

    def build() -> App:
        kind = options.dtype(dtype)
        check_drafter(drafter)
        check_encoding(q_encoding)
        target_tls = options.tls_files(target_tls_cert, target_tls_key, target_tls_ca)
        if target:
            channel_credentials(Address.parse(target), target_tls, insecure, target_token)
        listen = options.ListenConfig(
            host=host,
            port=port,
            tls=options.tls_files(tls_cert, tls_key, tls_ca),
            token=token,
            insecure=insecure,
            limits=RpcLimits(max_message_bytes=max_message_bytes, keepalive_seconds=keepalive),
            grace=grace,
            metrics_port=metrics_port,
        )
        listen.check()
        # heavy imports wait until --help and wrong options are dealt with
        from draft_service.app import DraftConfig, TargetAddress, load
        from draft_service.link import LinkConfig
        from draftproof.engine.config import ModelConfig

        chosen, drafts_with = choose(drafter, model)
        return load(
            DraftConfig(
                drafter=chosen,
                replay=replay,
                model=ModelConfig(
                    model=drafts_with,
                    backend=options.backend(backend if drafts_with == model else "transformers"),
                    dtype=kind,
                    device=device,
                    revision=revision,
                    slots=slots,
                    max_context=max_context,
                    threads=threads,
                ),
                target=TargetAddress(
                    address=target,
                    tls=target_tls,
                    token=target_token,
                    insecure=insecure,
                ),
                link=LinkConfig(reconnect_timeout=reconnect_timeout),
                listen=listen,
                q_encoding=q_encoding,
                lattice_entries=lattice_entries,
                lattice_bits=lattice_bits,
                gamma=gamma,
                tree=tree_widths(tree),
                adaptive=adaptive,
                ahead=draft_ahead,
                max_sessions=max_sessions,
                allow_weight_updates=allow_weight_updates,
                stall_timeout=stall_timeout,
            )
        )

    main(build)


if __name__ == "__main__":
    cli()
