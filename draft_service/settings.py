"""What can be said of a draft's settings before anything heavy is loaded."""

from __future__ import annotations

from collections.abc import Sequence

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


def tree_widths(text: str) -> tuple[int, ...]:
    """Reads the children of each node by depth, as in "3,2,1".

    Raises:
        ConfigError: not such a list.
    """
    try:
        widths = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError("tree", f"must be numbers with commas between them, got {text!r}") from None
    check_tree(widths)
    return widths


def check_tree(widths: Sequence[int]) -> None:
    """Checks the children of each node by depth.

    Raises:
        ConfigError: none, or one that is no number of children.
    """
    if not widths or min(widths) < 1:
        raise ConfigError("tree", f"must be one or more numbers of at least 1, got {list(widths)}")
