"""How many tokens a GGUF file lists, read from its first bytes: the `gguf` package parses all of it, for seconds."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO, Final

_KEY: Final = b"tokenizer.ggml.tokens"
_STRING: Final = 8
_ARRAY: Final = 9
# Bytes of the other value types, by their number in the format.
_SIZES: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def token_count(path: Path) -> int | None:
    """Length of the vocabulary, padding included; None where the file has none or isn't a GGUF of today's format."""
    with path.open("rb") as file:
        try:
            magic, version, _, pairs = struct.unpack("<4sIQQ", file.read(24))
            if magic != b"GGUF" or version < 2:
                return None
            for _ in range(pairs):
                key = _read_string(file)
                (kind,) = struct.unpack("<I", file.read(4))
                if key == _KEY:
                    _, count = struct.unpack("<IQ", file.read(12))
                    return int(count)
                _skip(file, kind)
        except (struct.error, KeyError):
            return None
    return None


def _read_string(file: BinaryIO) -> bytes:
    (length,) = struct.unpack("<Q", file.read(8))
    return file.read(length)


def _skip(file: BinaryIO, kind: int) -> None:
    if kind == _STRING:
        _read_string(file)
    elif kind == _ARRAY:
        inner, count = struct.unpack("<IQ", file.read(12))
        if inner in _SIZES:
            file.seek(count * _SIZES[inner], 1)
        else:
            for _ in range(count):
                _skip(file, inner)
    else:
        file.seek(_SIZES[kind], 1)
