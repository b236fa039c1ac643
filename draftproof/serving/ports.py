"""Where a generation gets its verdicts: the same three calls whether the target is here or across the network."""

from __future__ import annotations

from typing import Protocol

from draftproof.v1 import fingerprint_pb2, target_pb2, verdict_pb2


class VerifySession(Protocol):
    """One open session on a target. One round is in flight at a time."""

    opened: target_pb2.SessionOpened

    async def verify(self, block: target_pb2.Block) -> verdict_pb2.Verdict:
        """Verifies one block; those that a verdict announced as unaided are not sent.

        Raises:
            RequestError: the session failed; it is gone on the target.
        """
        ...

    def halt(self) -> None:
        """Asks for no more rounds unasked; a verdict without any to follow says when that is so."""
        ...

    async def close(self) -> None:
        """Frees the session everywhere. Safe to call twice, never raises."""
        ...


class VerifyPort(Protocol):
    """A way to open sessions on a target."""

    async def open(self, request: target_pb2.OpenSession) -> VerifySession:
        """Waits for a KV slot.

        Raises:
            RequestError: refused; OverloadedError carries a retry delay.
        """
        ...

    def fingerprint(self) -> fingerprint_pb2.Fingerprint:
        """The target's identity.

        Raises:
            PeerUnavailableError: no target is connected.
        """
        ...

    @property
    def max_gamma(self) -> int:
        """Largest gamma the target takes."""
        ...

    @property
    def max_unaided(self) -> int:
        """Most rounds without proposals that the target runs unasked."""
        ...

    @property
    def max_context(self) -> int:
        """Largest context in tokens."""
        ...

    @property
    def waiting(self) -> int:
        """Sessions that wait for a KV slot, as far as this process knows."""
        ...

    @property
    def addresses(self) -> list[str]:
        """Addresses of the targets behind this port, empty where it is this process."""
        ...
