"""Settings that both services share, and the command-line options that set them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, cast, get_args

import typer

from draftproof.errors import ConfigError
from draftproof.rpc.options import RpcLimits
from draftproof.rpc.security import TlsFiles

DType = Literal["auto", "float32", "bfloat16", "float16", "int8"]
Backend = Literal["transformers", "llamacpp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenConfig:
    """Where and how a service listens.

    Attributes:
        host: address to bind.
        port: port to bind; 0 takes a free one.
        tls: certificate, key and, for mutual TLS, the authority of the clients; None is plaintext.
        token: bearer token that callers must show; None asks for none.
        insecure: allows plaintext beyond loopback.
        limits: message and keepalive limits.
        grace: seconds that running requests get on SIGTERM.
        metrics_port: port of /metrics; None: none.
    """

    host: str = "127.0.0.1"
    port: int = 0
    tls: TlsFiles | None = None
    token: str | None = None
    insecure: bool = False
    limits: RpcLimits = field(default_factory=RpcLimits)
    grace: float = 30.0
    metrics_port: int | None = None

    @property
    def address(self) -> str:
        """host:port, with an IPv6 host in brackets."""
        host = f"[{self.host}]" if ":" in self.host and not self.host.startswith("[") else self.host
        return f"{host}:{self.port}"

    def check(self) -> None:
        """Says early, before a model is loaded, why nothing could be served here.

        Raises:
            ConfigError: the address is malformed, taken or not this machine's, a file or the token can't be used, or
                plaintext would leave this machine.
        """
        # not at the top: --help does without gRPC
        from draftproof.rpc.security import Address, check_token, server_credentials
        from draftproof.rpc.server import check_address

        server_credentials(Address.parse(self.address), self.tls, self.insecure)
        if self.token is not None:
            check_token(self.token)
        check_address(self.address)


def tls_files(cert: Path | None, key: Path | None, ca: Path | None) -> TlsFiles | None:
    """The files as given; None where there are none, which means plaintext."""
    return TlsFiles(cert=cert, key=key, ca=ca) if cert or key or ca else None


def dtype(name: str) -> DType:
    """Checks the name of a dtype.

    Raises:
        ConfigError: unknown.
    """
    if name not in get_args(DType):
        raise ConfigError("dtype", f"must be one of {', '.join(get_args(DType))}, got {name!r}")
    return cast(DType, name)


def backend(name: str) -> Backend:
    """Checks the name of a backend.

    Raises:
        ConfigError: unknown.
    """
    if name not in get_args(Backend):
        raise ConfigError("backend", f"must be one of {', '.join(get_args(Backend))}, got {name!r}")
    return cast(Backend, name)


LIMITS = RpcLimits()
_SECURITY = "Security"
Host = Annotated[str, typer.Option(help="Address to listen on.")]
TlsCert = Annotated[Path | None, typer.Option(help="Certificate of this server, PEM.", rich_help_panel=_SECURITY)]
TlsKey = Annotated[Path | None, typer.Option(help="Private key of the certificate, PEM.", rich_help_panel=_SECURITY)]
TlsCa = Annotated[
    Path | None,
    typer.Option(
        help="Authority that clients' certificates must come from; setting it makes them mandatory (mutual TLS).",
        rich_help_panel=_SECURITY,
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        help="Bearer token that callers must show. Prefer the environment variable: arguments show in process lists.",
        rich_help_panel=_SECURITY,
    ),
]
AllowWeightUpdates = Annotated[
    bool,
    typer.Option("--allow-weight-updates", help="Let clients change the model's weights.", rich_help_panel=_SECURITY),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Allow plaintext beyond loopback.", rich_help_panel=_SECURITY)
]
MaxMessageBytes = Annotated[int, typer.Option(help="Largest message sent or received, in bytes.")]
Keepalive = Annotated[float, typer.Option(help="Seconds of silence before a connection is probed.")]
Grace = Annotated[float, typer.Option(help="Seconds that running requests get to finish on SIGTERM.")]
MetricsPort = Annotated[
    int | None, typer.Option(help="Port of Prometheus metrics on the same host; unset: none, 0: a free one.")
]
Threads = Annotated[int | None, typer.Option(help="CPU threads of a forward pass; unset: PyTorch's choice.")]
LogLevel = Annotated[str, typer.Option(help="debug, info, warning or error.")]
LogFormat = Annotated[str, typer.Option(help="json, console, or auto: console on a terminal.")]
Model = Annotated[str, typer.Option(help="Hugging Face id, folder, .gguf file, or the embedded smollm2-135m-instruct.")]
BackendOption = Annotated[
    str, typer.Option("--backend", help="What computes: transformers, or llamacpp for .gguf files as they are stored.")
]
DTypeOption = Annotated[str, typer.Option("--dtype", help="auto, float32, bfloat16, float16, or int8 weights.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:n.")]
MaxContext = Annotated[
    int | None, typer.Option(help="Most tokens of a sequence; unset: the model's own, at most 4096.")
]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit on the hub.")]
