"""The engine on llama.cpp: a GGUF file computed as it is stored, many sequences a pass."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from draftproof.engine import embedded
from draftproof.engine.config import EMBEDDED, ModelConfig, context_within
from draftproof.engine.interface import Row, Tokenizer
from draftproof.engine.rows import check_copy, check_rows, check_slot
from draftproof.engine.selfcheck import TOLERANCE, distance, probe, ragged
from draftproof.errors import ModelLoadError

try:
    from draftproof.engine import llamacpp_native as native
except (ImportError, RuntimeError, FileNotFoundError) as error:
    raise ModelLoadError(
        f"the llamacpp backend needs llama-cpp-python ({error}); run `pip install 'draftproof[llamacpp]'`"
    ) from error


class LlamaCppEngine:
    """A GGUF model in llama.cpp. A slot is a sequence of one context; all slots share its buffer of keys and values.

    Logits are float32 [N, V] in the process's memory, copied out once. How a row is rounded depends on what shares its
    pass and on where its tokens lie in the buffer, as docs/numerics.md says.
    """

    def __init__(
        self,
        model: native.NativeModel,
        context: native.NativeContext,
        *,
        name: str,
        vocab_size: int,
        slots: int,
        max_context: int,
        weights_sha256: bytes,
    ) -> None:
        self.name = name
        self.vocab_size = vocab_size
        self.max_context = max_context
        self.slots = slots
        self.weights_sha256 = weights_sha256
        self.kv_bytes = slots * max_context * model.kv_token_bytes()
        self.trees = False
        self._ids_limit = model.vocab_size
        self._native = context
        self._ids: list[list[int]] = [[] for _ in range(slots)]
        self._tainted: set[int] = set()

    def length(self, slot: int) -> int:
        """Cached tokens in the slot."""
        check_slot(slot, self.slots)
        return len(self._ids[slot])

    def token_ids(self, slot: int) -> tuple[int, ...]:
        """The cached tokens themselves."""
        check_slot(slot, self.slots)
        return tuple(self._ids[slot])

    def truncate(self, slot: int, length: int) -> None:
        """Rolls the slot back to its first `length` tokens; 0 frees it."""
        if not 0 <= length <= self.length(slot):
            raise ValueError(f"slot {slot} holds {self.length(slot)} tokens, can't keep {length}")
        self._keep(slot, length)

    def keep(self, slot: int, nodes: Sequence[int]) -> None:
        """There are no trees here.

        Raises:
            ValueError: always, but for the empty path.
        """
        check_slot(slot, self.slots)
        if nodes:
            raise ValueError(f"slot {slot}: no path {list(nodes)} without a tree")

    def copy(self, source: int, slot: int, length: int) -> None:
        """Makes a slot hold the first `length` tokens of another; see `Engine.copy`. Both then share their place."""
        check_copy(source, slot, length, slots=self.slots, held=self.length)
        self._keep(slot, 0)
        self._native.share(source, slot, length)
        self._ids[slot] = self._ids[source][:length]
        if length and source in self._tainted:
            self._tainted.add(slot)

    @torch.inference_mode()
    def forward(self, rows: Sequence[Row]) -> Tensor:
        """Runs prefill, verification and decode rows in one pass; see `Engine.forward`."""
        check_rows(
            rows,
            slots=self.slots,
            max_context=self.max_context,
            ids=self._ids_limit,
            length=self.length,
            trees=self.trees,
        )
        if not rows:
            return torch.empty(0, self.vocab_size)
        for row in rows:
            self._keep(row.slot, row.start)
        try:
            logits = self._feed(rows)
        except RuntimeError:
            for row in rows:
                self._native.remove(row.slot, row.start)
            raise
        for row in rows:
            self._ids[row.slot].extend(row.token_ids)
        self._note_nan(rows, logits)
        return logits

    def _feed(self, rows: Sequence[Row]) -> Tensor:
        """All rows' tokens in batches that llama.cpp takes; logits [sum(row.logits), V]."""
        counts = [len(row.token_ids) for row in rows]
        tokens = np.concatenate([np.asarray(row.token_ids, np.int32) for row in rows])
        positions = np.concatenate(
            [np.arange(row.start, row.start + count, dtype=np.int32) for row, count in zip(rows, counts, strict=True)]
        )
        slots = np.repeat(np.array([row.slot for row in rows], np.int32), counts)
        ends = np.repeat([row.start + count for row, count in zip(rows, counts, strict=True)], counts)
        wanted = positions >= ends - np.repeat([row.logits for row in rows], counts)
        parts = []
        for begin in range(0, len(tokens), native.BATCH_TOKENS):
            part = slice(begin, begin + native.BATCH_TOKENS)
            parts.append(self._native.decode(tokens[part], positions[part], slots[part], wanted[part]))
        logits = parts[0] if len(parts) == 1 else torch.cat(parts)
        return logits[:, : self.vocab_size]

    def _keep(self, slot: int, length: int) -> None:
        """Forgets all but the first `length` tokens of a slot."""
        if length < len(self._ids[slot]):
            self._native.remove(slot, length)
            del self._ids[slot][length:]
        if length == 0 and slot in self._tainted:
            self._cleanse(slot)

    def _note_nan(self, rows: Sequence[Row], logits: Tensor) -> None:
        """Remembers slots whose keys or values may hold NaN."""
        if not bool(logits.sum(dim=-1).isnan().any()):
            return
        begin = 0
        for row in rows:
            if bool(logits[begin : begin + row.logits].isnan().any()):
                self._tainted.add(row.slot)
            begin += row.logits

    def _cleanse(self, slot: int) -> None:
        """Zeroes the buffer and computes the other slots anew.

        A hidden value is multiplied by zero, and zero times NaN is NaN: one request's NaN must not outlive it.
        """
        self._tainted.discard(slot)
        self._native.wipe()
        others = [(other, ids) for other, ids in enumerate(self._ids) if ids]
        for other, ids in others:
            self._feed([Row(other, 0, ids, 0)])


def load(config: ModelConfig, name: str, path: Path, tokenizer: Tokenizer) -> LlamaCppEngine:
    """Loads a GGUF file and checks that ragged passes and rollbacks give what one plain pass gives.

    Args:
        config: what to load.
        name: what the model is called.
        path: the file.
        tokenizer: the model's; it knows the real vocabulary size.

    Raises:
        ModelLoadError: the file can't be read or served; the message says what to do.
    """
    if config.slots > native.max_sequences():
        raise ModelLoadError(f"llama.cpp has at most {native.max_sequences()} slots; set slots to that or less")
    settings = native.NativeSettings(
        path=path,
        sequences=config.slots,
        kv_type=native.KV_TYPES[config.dtype],
        # Its own default is four, whatever the machine has, and threads that wait for a core stop all others.
        threads=torch.get_num_threads(),
        gpu=native.gpu_of(config.device),
    )
    model = native.NativeModel(settings)
    if model.unsupported is not None:
        raise ModelLoadError(f"{config.model} ({model.architecture}) {model.unsupported}; it can't be served")
    max_context = context_within(config, model.context_limit)
    engine = LlamaCppEngine(
        model,
        native.NativeContext(model, max_context),
        name=name if model.quantisation in name else f"{name} ({model.quantisation})",
        vocab_size=min(model.vocab_size, tokenizer.vocab_size),
        slots=config.slots,
        max_context=max_context,
        weights_sha256=file_identity(path, model.quantisation),
    )
    _check(engine)
    return engine


def file_identity(path: Path, quantisation: str) -> bytes:
    """SHA-256 over the quantisation's name and the file's own SHA-256, 32 bytes."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
    return hashlib.sha256(f"gguf\0{quantisation}\0".encode() + digest).digest()


def gguf_path(config: ModelConfig) -> Path:
    """The GGUF file that a configuration names; fetches the embedded model's.

    Raises:
        ModelLoadError: it names something else, or the file isn't there.
    """
    if config.model.lower() == EMBEDDED:
        return embedded.gguf()
    if not config.model.lower().endswith(".gguf"):
        raise ModelLoadError(
            f"the llamacpp backend reads .gguf files, not {config.model}; give the path of one, or use"
            " --backend transformers"
        )
    path = Path(config.model).expanduser()
    if not path.is_file():
        raise ModelLoadError(f"no file {config.model}; give the path of a .gguf file")
    return path


def _check(engine: LlamaCppEngine) -> None:
    ids = probe(engine.vocab_size, engine.max_context)
    expected = engine.forward([Row(engine.slots - 1, 0, ids, len(ids))])
    engine.truncate(engine.slots - 1, 0)
    error = distance(ragged(engine, ids), expected)
    if not error <= TOLERANCE:
        raise ModelLoadError(
            f"{engine.name} gives other logits in ragged passes than in one (off by {error:.2g} standard deviations);"
            " it can't be served"
        )
