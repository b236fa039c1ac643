"""The lattice code written bit by bit, for the vectorised one to be compared with and for messages that lie."""

from __future__ import annotations

from collections.abc import Sequence


def bytes_of(gaps: Sequence[int], counts: Sequence[int], gap_bits: int) -> bytes:
    """Code of entries given as ids skipped before each, and counts >= 1; the two may differ in number."""
    text = ""
    for gap in gaps:
        text += "0" * (gap >> gap_bits) + "1"
    for count in counts:
        text += "0" * (count.bit_length() - 1) + "1"
    for gap in gaps:
        text += format(gap % 2**gap_bits, "b").zfill(gap_bits) if gap_bits else ""
    for count in counts:
        text += format(count, "b")[1:]
    return int(text.ljust(-len(text) % 8 + len(text), "0") or "0", 2).to_bytes((len(text) + 7) // 8, "big")
