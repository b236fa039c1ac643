from __future__ import annotations

import pytest

from draft_service.settings import check_drafter, choose
from draftproof.engine.config import EMBEDDED, EMBEDDED_DRAFT
from draftproof.errors import ConfigError


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        (("auto", EMBEDDED, None), ("hybrid", EMBEDDED_DRAFT)),
        (("auto", EMBEDDED.upper(), None), ("hybrid", EMBEDDED_DRAFT)),
        (("auto", "org/large", None), ("ngram", "org/large")),
        (("auto", "org/large", "org/small"), ("model", "org/small")),
        (("auto", EMBEDDED, "folder"), ("model", "folder")),
        (("ngram", EMBEDDED, None), ("ngram", EMBEDDED)),
        (("model", "org/large", None), ("model", "org/large")),
        (("hybrid", EMBEDDED, "folder"), ("hybrid", "folder")),
    ],
)
def test_auto_takes_what_is_there(asked: tuple[str, str, str | None], chosen: tuple[str, str]) -> None:
    check_drafter(asked[0])
    assert choose(*asked) == chosen


def test_an_unknown_drafter_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="drafter: must be one of auto, ngram, model, hybrid"):
        check_drafter("oracle")
