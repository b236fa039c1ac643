"""Errors for people: one line on what is wrong, one on what to do."""

from __future__ import annotations

import sys

from draftproof.cli.stack import Interrupted
from draftproof.errors import (
    ConfigError,
    ContextLengthError,
    DeadlineExceededError,
    DraftproofError,
    FingerprintMismatchError,
    InvalidArgumentError,
    OverloadedError,
    UnauthenticatedError,
    UnavailableError,
    UnsupportedError,
)

FAILURE = 1
USAGE = 2

# the first class that fits
_HINTS: tuple[tuple[type[DraftproofError], str], ...] = (
    (ContextLengthError, "shorten the prompt, or start the servers with a larger --max-context"),
    (UnauthenticatedError, "give the server's token with --token or DRAFTPROOF_TOKEN"),
    (UnavailableError, "is a server running there? `draftproof up` starts one here, --address names another"),
    (OverloadedError, "try again later, or start the servers with more --slots or a larger --queue-limit"),
    (DeadlineExceededError, "raise --timeout"),
    (FingerprintMismatchError, "start draft and target with models that share a tokenizer; see `draftproof doctor`"),
    (UnsupportedError, "see `draftproof doctor` for what the server can do"),
)


def exit_code(error: DraftproofError) -> int:
    """2 where the command was called wrongly, 128 + the signal where the user stopped it, 1 where it failed."""
    if isinstance(error, Interrupted):
        return 128 + error.number
    return USAGE if isinstance(error, ConfigError | InvalidArgumentError) else FAILURE


def show_error(error: DraftproofError) -> None:
    """Prints the error and what to do about it on stderr."""
    kind = "" if isinstance(error, Interrupted) else "error: "
    print(f"{kind}{' '.join(error.message.split())}", file=sys.stderr)
    hint = next((text for kind, text in _HINTS if isinstance(error, kind)), "")
    if hint:
        print(f"       {hint}", file=sys.stderr)
