"""The SDK: the same client twice, blocking and for asyncio. Needs gRPC, never torch."""

from draftproof.client.aio import AsyncClient
from draftproof.client.aio_stream import AsyncStream
from draftproof.client.defaults import DEFAULT_ADDRESS, DEFAULT_TIMEOUT
from draftproof.client.retry import NO_RETRIES, RetryPolicy
from draftproof.client.rollouts import Rollout, RolloutSample
from draftproof.client.servers import Fingerprint, NextToken, ServerInfo
from draftproof.client.stream import Stream
from draftproof.client.sync import Client
from draftproof.client.types import (
    Chunk,
    Completion,
    FinishReason,
    Logprobs,
    Masses,
    PositionTrace,
    Start,
    Stats,
    TimeSplit,
    Token,
    TokenSource,
    TopLogprob,
    Usage,
)
from draftproof.client.weights import UpdatedServer

__all__ = [
    "DEFAULT_ADDRESS",
    "DEFAULT_TIMEOUT",
    "NO_RETRIES",
    "AsyncClient",
    "AsyncStream",
    "Chunk",
    "Client",
    "Completion",
    "Fingerprint",
    "FinishReason",
    "Logprobs",
    "Masses",
    "NextToken",
    "PositionTrace",
    "RetryPolicy",
    "Rollout",
    "RolloutSample",
    "ServerInfo",
    "Start",
    "Stats",
    "Stream",
    "TimeSplit",
    "Token",
    "TokenSource",
    "TopLogprob",
    "UpdatedServer",
    "Usage",
]
