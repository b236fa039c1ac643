"""Draftproof: speculative decoding across machines whose output law is exactly the target model's.

    from draftproof import Client

    with Client() as client:
        print(client.generate("The sea is").text)

Names load on first use, so importing the package costs nothing and never loads torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from draftproof.version import VERSION as __version__

if TYPE_CHECKING:
    from draftproof import errors
    from draftproof.client import (
        AsyncClient,
        AsyncStream,
        Chunk,
        Client,
        Completion,
        RetryPolicy,
        Rollout,
        RolloutSample,
        ServerInfo,
        Stream,
        Token,
        TokenSource,
    )
    from draftproof.errors import DraftproofError
    from draftproof.rpc.security import TlsFiles
    from draftproof.sampling.params import Rule, SamplingParams

__all__ = [
    "AsyncClient",
    "AsyncStream",
    "Chunk",
    "Client",
    "Completion",
    "DraftproofError",
    "RetryPolicy",
    "Rollout",
    "RolloutSample",
    "Rule",
    "SamplingParams",
    "ServerInfo",
    "Stream",
    "TlsFiles",
    "Token",
    "TokenSource",
    "__version__",
    "errors",
]

_HOMES = {
    "AsyncClient": "draftproof.client",
    "AsyncStream": "draftproof.client",
    "Chunk": "draftproof.client",
    "Client": "draftproof.client",
    "Completion": "draftproof.client",
    "DraftproofError": "draftproof.errors",
    "RetryPolicy": "draftproof.client",
    "Rollout": "draftproof.client",
    "RolloutSample": "draftproof.client",
    "Rule": "draftproof.sampling.params",
    "SamplingParams": "draftproof.sampling.params",
    "ServerInfo": "draftproof.client",
    "Stream": "draftproof.client",
    "TlsFiles": "draftproof.rpc.security",
    "Token": "draftproof.client",
    "TokenSource": "draftproof.client",
}


def __getattr__(name: str) -> object:
    if name == "errors":
        return import_module("draftproof.errors")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
