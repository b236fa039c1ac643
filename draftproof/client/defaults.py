"""What a client assumes where it isn't told, and what all its calls share."""

from __future__ import annotations

from dataclasses import dataclass

from draftproof.client.generation import Generation
from draftproof.client.request import check_timeout
from draftproof.client.retry import RetryPolicy
from draftproof.v1 import generation_pb2

DEFAULT_ADDRESS = "127.0.0.1:7500"
DEFAULT_TIMEOUT = 600.0
"""Seconds. Long enough for a long text on a busy CPU server; short enough that nothing hangs for ever."""
INFO_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one client.

    Attributes:
        address: "host:port".
        timeout: seconds per request.
        retries: what to do where the server is full, away or leaving.
    """

    address: str
    timeout: float
    retries: RetryPolicy

    def generation(self, request: generation_pb2.GenerateRequest, timeout: float | None) -> Generation:
        """One generation under these settings; its time starts now."""
        return Generation(request, self.timeout if timeout is None else check_timeout(timeout), self.retries)
