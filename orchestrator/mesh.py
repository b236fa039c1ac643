"""Security of the links inside a cluster: orchestrator to workers, drafts to targets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import grpc.aio

from draftproof.errors import ConfigError
from draftproof.rpc.channel import aio_channel
from draftproof.rpc.options import RpcLimits
from draftproof.rpc.security import TlsFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """What every member shows to the others and asks of them.

    Attributes:
        tls: certificate, key and authority, the same paths on every node; None is plaintext. With an authority, every
            link is mutual TLS.
        token: bearer token that workers ask for.
        insecure: allows plaintext beyond loopback.

    Raises:
        ConfigError: a token that plaintext would carry to other machines.
    """

    tls: TlsFiles | None = None
    token: str | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        if self.token is not None and self.insecure and self.tls is None:
            raise ConfigError("worker_token", "is never sent in plaintext to other machines; give TLS files as well")

    def dial(self, limits: RpcLimits) -> Callable[[str], grpc.aio.Channel]:
        """Makes channels to workers."""
        return lambda address: aio_channel(
            address, limits=limits, tls=self.tls, token=self.token, insecure=self.insecure
        )
