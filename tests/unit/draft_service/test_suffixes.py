"""Where the last tokens of a text stood before, against the definition."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from draft_service.drafters.suffixes import SuffixIndex


def by_scanning(tokens: list[int], shortest: int, longest: int) -> tuple[int, int]:
    for n in range(min(longest, len(tokens) - 1), shortest - 1, -1):
        for after in range(len(tokens) - 1, n - 1, -1):
            if tokens[after - n : after] == tokens[-n:]:
                return n, after
    return 0, 0


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=40),
    st.integers(0, 40),
    st.integers(1, 3),
    st.integers(0, 5),
)
def test_the_longest_latest_occurrence_wherever_the_text_is_cut(
    tokens: list[int], cut: int, shortest: int, more: int
) -> None:
    index = SuffixIndex(shortest, shortest + more)
    for token in tokens[:cut]:
        index.extend([token])
    assert index.find(tokens[cut:]) == by_scanning(tokens, shortest, shortest + more)
