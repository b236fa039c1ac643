"""Other weights for a running engine: loaded beside the ones it computes with, checked, then taken over at once."""

from __future__ import annotations

import contextlib
import copy
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel

from draftproof.engine import draft_folder, int8
from draftproof.engine.config import ModelConfig
from draftproof.engine.engine import TransformersEngine
from draftproof.engine.identity import weights_sha256
from draftproof.engine.interface import Tokenizer, Update
from draftproof.engine.loading import Source, quantises, read_model, runnable
from draftproof.engine.quiet import quiet
from draftproof.engine.selfcheck import plain_logits
from draftproof.engine.tokenizer import HfTokenizer
from draftproof.errors import FingerprintMismatchError, InvalidArgumentError, ModelLoadError, OverloadedError

_INDEX: Final = "model.safetensors.index.json"
_SINGLE: Final = "model.safetensors"
_MEMINFO: Final = Path("/proc/meminfo")
# What a configuration says of who wrote it and how to load it, not of what is computed.
_INCIDENTAL: Final = frozenset(
    {
        "_attn_implementation_autoset",
        "_name_or_path",
        "architectures",
        "attn_implementation",
        "bos_token_id",
        "dtype",
        "eos_token_id",
        "pad_token_id",
        "quantization_config",
        "torch_dtype",
        "transformers_version",
        "unk_token_id",
        "use_cache",
    }
)
# Slots and tokens of the throw-away engine that proves a set of weights.
_PROOF_SLOTS: Final = 2
_PROOF_CONTEXT: Final = 16


class WeightsLoader:
    """Reads weights for the model that an engine runs.

    Args:
        engine: the engine, as `load_engine` made it.
        tokenizer: its tokenizer.
        config: what it was loaded with.
    """

    def __init__(self, engine: TransformersEngine, tokenizer: Tokenizer, config: ModelConfig) -> None:
        assert engine.settings is not None
        self._engine = engine
        self._tokenizer = tokenizer
        self._config = config
        # as at the start: the engine's own attention is put in once a model is read
        self._settings = copy.deepcopy(engine.settings)
        assert isinstance(self._settings.dtype, torch.dtype)
        self._dtype = self._settings.dtype
        # a distilled draft's tensors are another file's, which transformers doesn't read
        self._single = draft_folder.WEIGHTS if draft_folder.describes(self._settings) else _SINGLE

    def __call__(self, path: Path) -> Update:
        """Loads and checks weights, in whatever thread; the engine goes on meanwhile.

        Args:
            path: a safetensors file, or a folder that holds one or an index of several; of a distilled draft its
                folder or draft.safetensors.

        Raises:
            InvalidArgumentError: no weights there, or not this model's; metadata names the file, setting or tensor.
            FingerprintMismatchError: they come with another tokenizer.
            OverloadedError: memory doesn't hold two sets of weights now.
        """
        files = _files(path, self._single)
        if path.is_dir():
            self._check_settings(path)
            self._check_tokenizer(path)
        self._check_memory(files)
        for file in files:
            _check_finite(file, whole=self._single == _SINGLE)
        with quiet(), tempfile.TemporaryDirectory(prefix="draftproof-weights-") as name:
            staged = self._stage(path, files, Path(name))
            return self._read(Source(self._engine.name, str(staged), {}))

    def _stage(self, path: Path, files: list[Path], folder: Path) -> Path:
        """A folder that transformers reads as it read the model at the start: these weights, the engine's settings."""
        self._settings.save_pretrained(folder)
        if (path / _INDEX).is_file():
            shutil.copy(path / _INDEX, folder / _INDEX)
        for file in files:
            (folder / (file.name if len(files) > 1 else self._single)).symlink_to(file.resolve())
        return folder

    def _read(self, source: Source) -> Update:
        engine = self._engine

        def read() -> PreTrainedModel:
            model, found = read_model(source, self._config, self._dtype, tolerant=True)
            _check_tensors(found)
            return model

        try:
            model = read()
            sha256 = weights_sha256(model)
            if quantises(self._config, model):
                sha256 = int8.identity(sha256)
            expected = plain_logits(model, engine.vocab_size, min(_PROOF_CONTEXT, engine.max_context))
            run = runnable(
                model,
                read,
                self._config,
                engine.max_context,
                lambda forward: TransformersEngine(
                    forward,
                    name=engine.name,
                    vocab_size=engine.vocab_size,
                    slots=_PROOF_SLOTS,
                    max_context=min(_PROOF_CONTEXT, engine.max_context),
                    weights_sha256=sha256,
                ),
                expected,
            ).run
        except ModelLoadError as error:
            raise InvalidArgumentError(error.message, metadata={"field": "weights"}) from error
        except (OSError, RuntimeError, ValueError, LookupError, SafetensorError) as error:
            first = str(error).strip().splitlines() or [type(error).__name__]
            raise InvalidArgumentError(
                f"the weights can't be read: {first[0]}", metadata={"field": "weights"}
            ) from error
        return Update(sha256, lambda: engine.replace(run, sha256))

    def _check_settings(self, folder: Path) -> None:
        if not (folder / "config.json").is_file():
            return
        try:
            theirs = AutoConfig.from_pretrained(folder).to_dict()
        except (OSError, ValueError, KeyError) as error:
            raise InvalidArgumentError(
                f"{folder / 'config.json'} can't be read", metadata={"field": "config.json"}
            ) from error
        ours = self._settings.to_dict()
        for field in sorted(set(ours) | set(theirs)):
            if field not in _INCIDENTAL and ours.get(field) != theirs.get(field):
                raise InvalidArgumentError.of(
                    f"config.json: {field}", f"{ours.get(field)!r}, as in the running model", theirs.get(field)
                )

    def _check_tokenizer(self, folder: Path) -> None:
        if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
            return
        try:
            with quiet():
                theirs = HfTokenizer(AutoTokenizer.from_pretrained(folder), frozenset())
        except (OSError, ValueError, KeyError) as error:
            raise InvalidArgumentError(
                f"the tokenizer in {folder} can't be read", metadata={"field": "tokenizer"}
            ) from error
        for token_id in range(self._engine.vocab_size):
            mine, other = self._tokenizer.token(token_id), theirs.token(token_id)
            if mine != other:
                raise FingerprintMismatchError(
                    f"the weights come with another tokenizer: token {token_id} is {mine!r} here and {other!r} there",
                    metadata={"field": "tokenizer_sha256", "token_id": str(token_id), "ours": mine, "theirs": other},
                )

    def _check_memory(self, files: list[Path]) -> None:
        """The new weights stand beside the old ones, in the engine's dtype and once more while they are laid out."""
        width = torch.empty(0, dtype=self._dtype).element_size()
        largest = max((_elements(file) for file in files), default=0) * width
        needed = sum(_elements(file) for file in files) * width + largest // 4
        free = _free_bytes(self._engine.device)
        if free is not None and needed > free:
            raise OverloadedError(
                f"memory for a second set of weights: {needed >> 20} MiB needed, {free >> 20} MiB free on the"
                f" {self._engine.device.type}; start the server again with the new weights instead",
                metadata={"setting": "memory", "limit": str(free)},
                retry_delay=5.0,
            )


def _files(path: Path, single: str) -> list[Path]:
    """The safetensors files of a path; `single` is the one that a folder without an index has."""
    if path.is_file():
        return [path]
    if (path / _INDEX).is_file():
        try:
            names = sorted(set(json.loads((path / _INDEX).read_text())["weight_map"].values()))
        except (ValueError, KeyError, AttributeError) as error:
            raise InvalidArgumentError.of("path", f"a folder with a readable {_INDEX}", str(path)) from error
        files = [path / Path(name).name for name in names]
    else:
        files = [path / single]
    for file in files:
        if not file.is_file():
            raise InvalidArgumentError.of(
                "path", f"a safetensors file or a folder with {single} or {_INDEX}", str(file)
            )
    return files


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[Any]:
    try:
        with safe_open(file, framework="pt") as tensors:
            yield tensors
    except (SafetensorError, OSError) as error:
        raise InvalidArgumentError(
            f"{file.name} is no safetensors file: {error}", metadata={"field": file.name}
        ) from error


def _elements(file: Path) -> int:
    with _opened(file) as tensors:
        shapes = [tensors.get_slice(name).get_shape() for name in tensors.keys()]  # noqa: SIM118
    return sum(int(torch.Size(shape).numel()) for shape in shapes)


def _check_finite(file: Path, *, whole: bool) -> None:
    """Every number is one; `whole` models have no integers, distilled drafts have."""
    with _opened(file) as tensors:
        for name in tensors.keys():  # noqa: SIM118
            tensor = tensors.get_tensor(name)
            if whole and not tensor.is_floating_point():
                raise InvalidArgumentError.of(f"weights[{name}]", "of a floating-point dtype", str(tensor.dtype))
            if not bool(tensor.isfinite().all()):
                raise InvalidArgumentError.of(f"weights[{name}]", "finite", "NaN or infinity")


def _check_tensors(found: dict[str, Any]) -> None:
    """Names the first tensor that is missing, unknown, or of another shape."""
    for name, theirs, ours in sorted(found.get("mismatched_keys") or ()):
        raise InvalidArgumentError.of(f"weights[{name}]", f"of shape {list(ours)}", list(theirs))
    for name in sorted(found.get("missing_keys") or ()):
        raise InvalidArgumentError.of(f"weights[{name}]", "there", "nothing of that name")
    for name in sorted(found.get("unexpected_keys") or ()):
        raise InvalidArgumentError.of(f"weights[{name}]", "a tensor of the running model", "an unknown name")


def _free_bytes(device: torch.device) -> int | None:
    """Free memory where the weights go; None where nobody says."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if not _MEMINFO.is_file():
        return None
    for line in _MEMINFO.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None
