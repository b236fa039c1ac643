"""What can be said of a draft's settings before anything heavy is loaded."""

from __future__ import annotations

from draftproof.errors import ConfigError

DRAFTERS = ("ngram", "model", "hybrid")
ENCODINGS = ("lattice", "sparse", "dense")


def check_drafter(drafter: str) -> None:
    """Checks the name of a drafter.

    Raises:
        ConfigError: unknown.
    """
    if drafter not in DRAFTERS:
        raise ConfigError("drafter", f"must be one of {', '.join(DRAFTERS)}, got {drafter!r}")


def check_encoding(encoding: str) -> None:
    """Checks the name of a q encoding.

    Raises:
        ConfigError: unknown.
    """
    if encoding not in ENCODINGS:
        raise ConfigError("q_encoding", f"must be one of {', '.join(ENCODINGS)}, got {encoding!r}")
