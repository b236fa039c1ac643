"""What can be said of a draft's settings before anything heavy is loaded."""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.engine.config import EMBEDDED, EMBEDDED_DRAFT
from draftproof.errors import ConfigError

DRAFTERS = ("auto", "ngram", "model", "hybrid")
ENCODINGS = ("lattice", "sparse", "dense")


def check_drafter(drafter: str) -> None:
    """Checks the name of a drafter.

    Raises:
        ConfigError: unknown.
    """
    if drafter not in DRAFTERS:
        raise ConfigError("drafter", f"must be one of {', '.join(DRAFTERS)}, got {drafter!r}")


def choose(drafter: str, target: str, model: str | None = None) -> tuple[str, str]:
    """What drafts for a target, and the model that it drafts with; "auto" takes what is there.

    Args:
        drafter: as asked for.
        target: the target's model.
        model: the drafter's own, if one is named.
    """
    if drafter == "auto":
        if model is not None:
            return "model", model
        return ("hybrid", EMBEDDED_DRAFT) if target.lower() == EMBEDDED else ("ngram", target)
    return drafter, model or target


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
