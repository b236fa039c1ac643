"""Keys and values of a llama.cpp sequence, out of the state that it saves and loads."""

from __future__ import annotations

import ctypes

import llama_cpp
import numpy as np
import torch
from torch import Tensor

from draftproof.engine.llamacpp import LlamaCppEngine

HEADER_WORDS = 4
"""Magic, sequence, streams, cells."""
CELL_WORDS = 3
"""Position, number of sequences, sequence."""


def read(engine: LlamaCppEngine, slot: int) -> list[Tensor]:
    """Keys of every layer, then values, each [length, width], in order of position. Float32 caches only."""
    state = _save(engine, slot)
    words = state.view(np.int32)
    cells = int(words[HEADER_WORDS - 1])
    assert cells == engine.length(slot)
    positions = words[HEADER_WORDS : HEADER_WORDS + cells * CELL_WORDS].reshape(cells, CELL_WORDS)[:, 0]
    assert sorted(positions) == list(range(cells))
    at = HEADER_WORDS + cells * CELL_WORDS
    order = np.argsort(positions)
    transposed, layers = words[at : at + 2]
    assert transposed
    at += 2
    kept = []
    for part in range(2 * layers):
        assert words[at] == llama_cpp.GGML_TYPE_F32
        is_key = part < layers
        count = cells * (int(words[at + 1]) // 4 if is_key else int(words[at + 2]))
        at += 3
        values = words[at : at + count].view(np.float32)
        rows = values.reshape(cells, -1) if is_key else values.reshape(-1, cells).T
        kept.append(torch.from_numpy(rows[order].copy()))
        at += count
    assert at == len(words)
    return kept


def poison(engine: LlamaCppEngine, slot: int) -> None:
    """Makes NaN of all keys and values."""
    state = _save(engine, slot)
    words, cells = state.view(np.int32), engine.length(slot)
    at = HEADER_WORDS + cells * CELL_WORDS
    layers = int(words[at + 1])
    at += 2
    for part in range(2 * layers):
        count = cells * (int(words[at + 1]) // 4 if part < layers else int(words[at + 2]))
        at += 3
        words[at : at + count].view(np.float32)[:] = np.nan
        at += count
    engine._native.remove(slot, 0)
    data = (ctypes.c_uint8 * len(state)).from_buffer(state)
    assert llama_cpp.llama_state_seq_set_data(engine._native._pointer, data, len(state), slot) == len(state)


def _save(engine: LlamaCppEngine, slot: int) -> np.ndarray:
    context = engine._native._pointer
    state = np.zeros(llama_cpp.llama_state_seq_get_size(context, slot), np.uint8)
    data = (ctypes.c_uint8 * len(state)).from_buffer(state)
    assert llama_cpp.llama_state_seq_get_data(context, data, len(state), slot) == len(state)
    return state
