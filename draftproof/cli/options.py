"""Options that several commands share. Each can be set by the environment variable shown in its help."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from draftproof.client import AsyncClient, Client
    from draftproof.errors import RequestError
    from draftproof.rpc.security import TlsFiles

_SERVER = "Server"
_SAMPLING = "Sampling"
_STOPPING = "Stopping"
_REPEAT_SECONDS = 30.0

Address = Annotated[
    str,
    typer.Option("--address", "-a", envvar="DRAFTPROOF_ADDRESS", help="Server, host:port.", rich_help_panel=_SERVER),
]
TlsCa = Annotated[
    Path | None,
    typer.Option(
        envvar="DRAFTPROOF_TLS_CA", help="Authority the server's certificate comes from, PEM.", rich_help_panel=_SERVER
    ),
]
TlsCert = Annotated[
    Path | None,
    typer.Option(envvar="DRAFTPROOF_TLS_CERT", help="Own certificate for mutual TLS, PEM.", rich_help_panel=_SERVER),
]
TlsKey = Annotated[
    Path | None,
    typer.Option(envvar="DRAFTPROOF_TLS_KEY", help="Private key of --tls-cert, PEM.", rich_help_panel=_SERVER),
]
Tls = Annotated[
    bool,
    typer.Option("--tls", envvar="DRAFTPROOF_TLS", help="TLS with the public authorities.", rich_help_panel=_SERVER),
]
Token = Annotated[
    str | None,
    typer.Option(
        envvar="DRAFTPROOF_TOKEN",
        help="Bearer token. Prefer the variable: arguments show in process lists.",
        rich_help_panel=_SERVER,
    ),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        envvar="DRAFTPROOF_INSECURE",
        help="Allow plaintext to another machine.",
        rich_help_panel=_SERVER,
    ),
]
Timeout = Annotated[
    float,
    typer.Option(envvar="DRAFTPROOF_TIMEOUT", help="Seconds a request may take in all.", rich_help_panel=_SERVER),
]

Temperature = Annotated[
    float | None,
    typer.Option(
        envvar="DRAFTPROOF_TEMPERATURE", help="0 is greedy; unset: 1, the model's own law.", rich_help_panel=_SAMPLING
    ),
]
TopK = Annotated[
    int | None,
    typer.Option(envvar="DRAFTPROOF_TOP_K", help="Keep the k likeliest tokens; 0: all.", rich_help_panel=_SAMPLING),
]
TopP = Annotated[
    float | None,
    typer.Option(envvar="DRAFTPROOF_TOP_P", help="Keep the likeliest tokens of this mass.", rich_help_panel=_SAMPLING),
]
MinP = Annotated[
    float | None,
    typer.Option(
        envvar="DRAFTPROOF_MIN_P", help="Drop tokens below this share of the likeliest.", rich_help_panel=_SAMPLING
    ),
]
RepetitionPenalty = Annotated[
    float | None,
    typer.Option(
        envvar="DRAFTPROOF_REPETITION_PENALTY",
        help="Against tokens of prompt and output; 1: off.",
        rich_help_panel=_SAMPLING,
    ),
]
PresencePenalty = Annotated[
    float | None,
    typer.Option(envvar="DRAFTPROOF_PRESENCE_PENALTY", help="Once per token in the output.", rich_help_panel=_SAMPLING),
]
FrequencyPenalty = Annotated[
    float | None,
    typer.Option(
        envvar="DRAFTPROOF_FREQUENCY_PENALTY", help="Per occurrence in the output.", rich_help_panel=_SAMPLING
    ),
]
LogitBias = Annotated[
    list[str] | None,
    typer.Option(
        envvar="DRAFTPROOF_LOGIT_BIAS", help="ID=VALUE; may be repeated.", metavar="ID=VALUE", rich_help_panel=_SAMPLING
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(envvar="DRAFTPROOF_SEED", help="Same seed and gamma, same text.", rich_help_panel=_SAMPLING),
]
Gamma = Annotated[
    int | None,
    typer.Option(
        envvar="DRAFTPROOF_GAMMA",
        help="Proposals per round; 0: target only; unset: the server's choice.",
        rich_help_panel=_SAMPLING,
    ),
]
RuleOption = Annotated[
    str | None,
    typer.Option(
        "--rule",
        envvar="DRAFTPROOF_RULE",
        help="How proposals are judged: block (the default), token, coupled; lossy: lenient, typical.",
        rich_help_panel=_SAMPLING,
    ),
]
Lenience = Annotated[
    float | None,
    typer.Option(
        envvar="DRAFTPROOF_LENIENCE", help="Of a lossy rule, in (0, 1); smaller is laxer.", rich_help_panel=_SAMPLING
    ),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(envvar="DRAFTPROOF_MAX_TOKENS", help="Most tokens to generate.", rich_help_panel=_STOPPING),
]
Stop = Annotated[
    list[str] | None,
    typer.Option(envvar="DRAFTPROOF_STOP", help="End before this text; may be repeated.", rich_help_panel=_STOPPING),
]
StopTokenIds = Annotated[
    list[int] | None,
    typer.Option(
        "--stop-token-id",
        envvar="DRAFTPROOF_STOP_TOKEN_IDS",
        help="End after this token; may be repeated.",
        rich_help_panel=_STOPPING,
    ),
]
IgnoreEos = Annotated[
    bool,
    typer.Option(
        "--ignore-eos", envvar="DRAFTPROOF_IGNORE_EOS", help="Go on after end of sequence.", rich_help_panel=_STOPPING
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """How to reach a server."""

    address: str
    tls: bool = False
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    token: str | None = None
    insecure: bool = False
    timeout: float = 600.0

    def tls_files(self) -> TlsFiles | None:
        """The files as given; None means plaintext.

        Raises:
            ConfigError: a certificate without its key, or the other way round.
        """
        from draftproof.rpc.security import TlsFiles

        if not (self.tls or self.tls_ca or self.tls_cert or self.tls_key):
            return None
        return TlsFiles(cert=self.tls_cert, key=self.tls_key, ca=self.tls_ca)

    def client(self) -> Client:
        """An SDK client.

        Raises:
            ConfigError: the address is malformed, a file is missing, or plaintext isn't allowed.
        """
        from draftproof.client import Client, RetryPolicy

        return Client(
            self.address,
            tls=self.tls_files(),
            token=self.token,
            insecure=self.insecure,
            timeout=self.timeout,
            retries=RetryPolicy(notice=Waiting(self.address)),
        )

    def async_client(self) -> AsyncClient:
        """An SDK client for asyncio. Errors as for `client`, at its first call."""
        from draftproof.client import AsyncClient, RetryPolicy

        return AsyncClient(
            self.address,
            tls=self.tls_files(),
            token=self.token,
            insecure=self.insecure,
            timeout=self.timeout,
            retries=RetryPolicy(notice=Waiting(self.address)),
        )


class Waiting:
    """Says on stderr what a call waits for: once a cause, and again now and then."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._said = ""
        self._quiet_until = 0.0

    def __call__(self, error: RequestError, seconds: float) -> None:
        """A call is about to be tried again."""
        now = time.monotonic()
        problem = " ".join(error.message.split())
        if problem == self._said and now < self._quiet_until:
            return
        self._said, self._quiet_until = problem, now + _REPEAT_SECONDS
        print(f"waiting for {self._address}: {problem}; trying for another {seconds:.0f} s", file=sys.stderr)


def sampling_fields(**options: Any) -> dict[str, Any]:
    """The sampling options that were given, as keywords of the SDK; the rest keep the SDK's defaults.

    Raises:
        InvalidArgumentError: a logit bias that isn't ID=VALUE.
    """
    given = {name: value for name, value in options.items() if value is not None and value is not False and value != []}
    if "logit_bias" in given:
        given["logit_bias"] = dict(map(_bias, given["logit_bias"]))
    return given


def _bias(text: str) -> tuple[int, float]:
    from draftproof.errors import InvalidArgumentError

    token_id, _, value = text.partition("=")
    try:
        return int(token_id), float(value)
    except ValueError:
        raise InvalidArgumentError.of("logit_bias", "ID=VALUE", text) from None
