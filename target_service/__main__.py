"""`python -m target_service`: command line of the target server."""

from __future__ import annotations

import typer

from draftproof.rpc.options import RpcLimits
from draftproof.serving import logs, options
from draftproof.serving.lifecycle import App, main

cli = typer.Typer(
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"auto_envvar_prefix": "DRAFTPROOF_TARGET", "help_option_names": ["-h", "--help"]},
)


@cli.command()
def target(
    model: options.Model = "smollm2-135m-instruct",
    backend: options.BackendOption = "transformers",
    dtype: options.DTypeOption = "auto",
    device: options.Device = "auto",
    device_map: str | None = typer.Option(None, help="Spread the layers over devices: auto, balanced, sequential."),
    revision: options.Revision = None,
    slots: int = typer.Option(8, min=1, help="Sessions whose KV is kept at once."),
    max_context: options.MaxContext = None,
    batch_invariant: bool = typer.Option(
        False, "--batch-invariant", help="Bit-equal results whatever the batch mates, at several times the compute."
    ),
    threads: options.Threads = None,
    host: options.Host = "127.0.0.1",
    port: int = typer.Option(7600, min=0, max=65535, help="Port to listen on; 0: a free one."),
    queue_limit: int = typer.Option(64, min=0, help="Most sessions that wait for a slot; one more is refused."),
    max_gamma: int = typer.Option(16, min=0, help="Most proposals in a block."),
    allow_lossy: bool = typer.Option(
        False, "--allow-lossy", help="Let requests ask for a rule that bends the output law (lenient, typical)."
    ),
    allow_weight_updates: options.AllowWeightUpdates = False,
    max_batch_tokens: int = typer.Option(512, min=1, help="Most tokens fed in one forward pass."),
    prefill_chunk: int = typer.Option(256, min=1, help="Most prompt tokens of a session in one forward pass."),
    idle_evict: float = typer.Option(5.0, min=0.01, help="Idle seconds after which a waiting session takes a slot."),
    idle_timeout: float = typer.Option(60.0, min=0.1, help="Idle seconds after which a session is closed."),
    stall_timeout: float = typer.Option(60.0, min=0.1, help="Seconds without progress before NOT_SERVING."),
    reuse_prefixes: bool = typer.Option(True, help="Let a prompt start from the KV of one that begins alike."),
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
    """Verifies proposals of draft servers in one batched forward pass; generates without them too.

    Every option can be set by an environment variable: --max-gamma is DRAFTPROOF_TARGET_MAX_GAMMA.
    """
    logs.configure(log_level, log_format)

    def build() -> App:
        kind = options.dtype(dtype)
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
        from draftproof.engine.config import ModelConfig
        from target_service.app import TargetConfig, load
        from target_service.schedule import PassLimits
        from target_service.verifier import VerifierConfig

        return load(
            TargetConfig(
                model=ModelConfig(
                    model=model,
                    backend=options.backend(backend),
                    dtype=kind,
                    device=device,
                    device_map=device_map,
                    revision=revision,
                    slots=slots,
                    max_context=max_context,
                    batch_invariant=batch_invariant,
                    threads=threads,
                ),
                verifier=VerifierConfig(
                    queue_limit=queue_limit,
                    max_gamma=max_gamma,
                    allow_lossy=allow_lossy,
                    idle_evict=idle_evict,
                    idle_timeout=idle_timeout,
                    stall_timeout=stall_timeout,
                    reuse_prefixes=reuse_prefixes,
                    passes=PassLimits(
                        max_tokens=max_batch_tokens, prefill_chunk=prefill_chunk, merge=not batch_invariant
                    ),
                ),
                listen=listen,
                allow_weight_updates=allow_weight_updates,
            )
        )

    main(build)


if __name__ == "__main__":
    cli()
