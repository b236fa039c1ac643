"""One llama.cpp model and context, by the low-level interface of llama-cpp-python; the only module that imports it."""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import llama_cpp
import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray
from torch import Tensor

from draftproof.errors import ModelLoadError

BATCH_TOKENS: Final = 512
"""Tokens of one llama_decode; a longer pass takes several."""

KV_TYPES: Final = {
    "auto": GGMLQuantizationType.F32,
    "float32": GGMLQuantizationType.F32,
    "float16": GGMLQuantizationType.F16,
    "bfloat16": GGMLQuantizationType.BF16,
}

_ERROR: Final = 4
_log_lines: deque[str] = deque(maxlen=20)


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def _log(level: int, text: bytes, _: object) -> None:
    """Keeps what went wrong for the error that follows; the terminal belongs to the service."""
    if level == _ERROR:
        _log_lines.append(text.decode(errors="replace").strip())


@dataclass(frozen=True, slots=True)
class NativeSettings:
    """What a model and its context are made from.

    Attributes:
        path: the .gguf file.
        sequences: how many there are, ids 0 … sequences - 1.
        kv_type: of keys and values.
        threads: CPU threads of a decode.
        gpu: index of the one GPU to use, -1 for all, None for none.
    """

    path: Path
    sequences: int
    kv_type: GGMLQuantizationType
    threads: int
    gpu: int | None


class NativeModel:
    """Weights in memory.

    Raises:
        ModelLoadError: llama.cpp can't read the file, or can't roll this kind of model back.
    """

    def __init__(self, settings: NativeSettings) -> None:
        llama_cpp.llama_log_set(_log, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self.settings = settings
        parameters = llama_cpp.llama_model_default_params()
        parameters.n_gpu_layers = 0 if settings.gpu is None else -1
        if settings.gpu is not None and settings.gpu >= 0:
            parameters.split_mode = llama_cpp.LLAMA_SPLIT_MODE_NONE
            parameters.main_gpu = settings.gpu
        _log_lines.clear()
        self.pointer: Any = llama_cpp.llama_model_load_from_file(str(settings.path).encode(), parameters)
        if not self.pointer:
            raise ModelLoadError(f"llama.cpp can't load {settings.path.name}: {_reason()}")
        _free_with(self, llama_cpp.llama_model_free, self.pointer)
        self.vocab_size: int = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.pointer))
        self.context_limit: int = llama_cpp.llama_model_n_ctx_train(self.pointer)
        self.architecture = self._metadata("general.architecture")
        stored: bytes = llama_cpp.llama_ftype_name(llama_cpp.llama_model_ftype(self.pointer))
        self.quantisation = stored.decode().removeprefix("all ")

    @property
    def unsupported(self) -> str | None:
        """What keeps the model from being served, if anything does."""
        if llama_cpp.llama_model_has_encoder(self.pointer) or not llama_cpp.llama_model_has_decoder(self.pointer):
            return "is no decoder-only model"
        if llama_cpp.llama_model_is_diffusion(self.pointer):
            return "generates by diffusion"
        if llama_cpp.llama_model_is_recurrent(self.pointer) or llama_cpp.llama_model_is_hybrid(self.pointer):
            return "keeps a recurrent state, which can't be rolled back"
        return None

    def kv_token_bytes(self) -> int:
        """Size of one token's keys and values, by the head sizes of the first layer."""
        heads = llama_cpp.llama_model_n_head_kv(self.pointer)
        width = llama_cpp.llama_model_n_embd(self.pointer) // max(1, llama_cpp.llama_model_n_head(self.pointer))
        dims = [
            int(self._metadata(f"{self.architecture}.attention.{part}_length") or width) for part in ("key", "value")
        ]
        layers = llama_cpp.llama_model_n_layer(self.pointer)
        return int(layers * heads * sum(dims) * GGML_QUANT_SIZES[self.settings.kv_type][1])

    def _metadata(self, key: str) -> str:
        buffer = ctypes.create_string_buffer(256)
        length = llama_cpp.llama_model_meta_val_str(self.pointer, key.encode(), buffer, len(buffer))
        return buffer.value.decode() if length > 0 else ""


class NativeContext:
    """Keys and values of all sequences in one buffer, and the batches that fill it. One thread owns it.

    Raises:
        ModelLoadError: there isn't memory enough, or the model can't have such a context.
    """

    def __init__(self, model: NativeModel, context: int) -> None:
        settings = model.settings
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx = settings.sequences * context
        parameters.n_batch = parameters.n_ubatch = BATCH_TOKENS
        parameters.n_seq_max = settings.sequences
        # One buffer for all: with one each, rows of unequal length would become several passes over the weights.
        parameters.kv_unified = True
        # A window that forgets can't be rolled back.
        parameters.swa_full = True
        parameters.type_k = parameters.type_v = settings.kv_type
        # Flash attention rounds keys and values to 16 bits, whatever they are kept in.
        exact = settings.kv_type == GGMLQuantizationType.F32
        parameters.flash_attn_type = (
            llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED if exact else llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
        )
        parameters.offload_kqv = parameters.op_offload = settings.gpu is not None
        parameters.no_perf = True
        parameters.n_threads = parameters.n_threads_batch = settings.threads
        _log_lines.clear()
        self._model = model
        self._pointer: Any = llama_cpp.llama_init_from_model(model.pointer, parameters)
        if not self._pointer:
            raise ModelLoadError(
                f"llama.cpp can't make a context of {settings.sequences} slots x {context} tokens: {_reason()}; use"
                " fewer slots or a smaller max_context"
            )
        _free_with(self, llama_cpp.llama_free, self._pointer)
        self._memory = llama_cpp.llama_get_memory(self._pointer)
        self._tokens = np.zeros(BATCH_TOKENS, np.int32)
        self._positions = np.zeros(BATCH_TOKENS, np.int32)
        self._sequences = np.zeros(BATCH_TOKENS, np.int32)
        self._wanted = np.zeros(BATCH_TOKENS, np.int8)
        self._counts = np.ones(BATCH_TOKENS, np.int32)
        addresses = self._sequences.ctypes.data + 4 * np.arange(BATCH_TOKENS, dtype=np.uintp)
        self._sequence_pointers = np.ascontiguousarray(addresses)
        self._batch = llama_cpp.llama_batch(
            token=_pointer_to(self._tokens, llama_cpp.llama_token),
            pos=_pointer_to(self._positions, llama_cpp.llama_pos),
            n_seq_id=_pointer_to(self._counts, ctypes.c_int32),
            seq_id=_pointer_to(self._sequence_pointers, ctypes.POINTER(llama_cpp.llama_seq_id)),
            logits=_pointer_to(self._wanted, ctypes.c_int8),
        )

    def decode(
        self,
        tokens: NDArray[np.int32],
        positions: NDArray[np.int32],
        sequences: NDArray[np.int32],
        wanted: NDArray[Any],
    ) -> Tensor:
        """Feeds tokens, each at its position of its sequence; at most BATCH_TOKENS.

        Args:
            tokens: int32 [N].
            positions: int32 [N], in each sequence the next ones.
            sequences: int32 [N].
            wanted: bool [N], whose logits to return.

        Returns:
            Logits float32 [wanted.sum(), padded V], a copy.

        Raises:
            RuntimeError: llama.cpp failed; what it holds of these sequences past their old ends is undefined.
        """
        count, outputs = len(tokens), int(np.count_nonzero(wanted))
        for array, values in (
            (self._tokens, tokens),
            (self._positions, positions),
            (self._sequences, sequences),
            (self._wanted, wanted),
        ):
            array[:count] = values
        self._batch.n_tokens = count
        _log_lines.clear()
        status = llama_cpp.llama_decode(self._pointer, self._batch)
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}: {_reason()}")
        if not outputs:
            return torch.empty(0, self._model.vocab_size)
        logits = np.ctypeslib.as_array(
            llama_cpp.llama_get_logits(self._pointer), shape=(outputs, self._model.vocab_size)
        )
        return torch.from_numpy(logits.copy())

    def remove(self, sequence: int, start: int) -> None:
        """Forgets what a sequence holds from a position on."""
        if not llama_cpp.llama_memory_seq_rm(self._memory, sequence, start, -1):
            raise RuntimeError(f"llama.cpp can't roll sequence {sequence} back to {start}")

    def share(self, source: int, sequence: int, length: int) -> None:
        """Puts the first `length` positions of a sequence into an empty one as well. Nothing is copied."""
        llama_cpp.llama_memory_seq_cp(self._memory, source, sequence, 0, length)

    def wipe(self) -> None:
        """Forgets all sequences and zeroes their keys and values."""
        llama_cpp.llama_memory_clear(self._memory, True)


def gpu_of(device: str) -> int | None:
    """The GPU that a device names, as in `NativeSettings.gpu`.

    Raises:
        ModelLoadError: one is asked for, and this build of llama.cpp has none.
    """
    offloads = bool(llama_cpp.llama_supports_gpu_offload())
    kind, _, index = device.partition(":")
    if kind == "cuda" and not offloads:
        raise ModelLoadError(
            f"device {device} was asked for, but this llama-cpp-python was built without a GPU; build it with"
            " CMAKE_ARGS=-DGGML_CUDA=on, or use --device cpu"
        )
    return None if kind == "cpu" or not offloads else int(index or -1)


def max_sequences() -> int:
    """Most sequences that a context may have."""
    return int(llama_cpp.llama_max_parallel_sequences())


def _free_with(owner: object, free: Any, pointer: Any) -> None:
    """Frees what llama.cpp holds once its owner is gone; at the process's end the system does."""
    weakref.finalize(owner, free, pointer).atexit = False


def _pointer_to(array: NDArray[Any], kind: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))


def _reason() -> str:
    """The first thing that llama.cpp complained of; the rest follows from it."""
    return _log_lines[0] if _log_lines else "it gives no reason"
