"""What a deployer says about the model a service runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from draftproof.errors import ConfigError, ModelLoadError

EMBEDDED: Final = "smollm2-135m-instruct"
"""Name of the model that needs no download from the Hugging Face hub."""

EMBEDDED_DRAFT: Final = "smollm2-135m-instruct-draft"
"""Name of the distilled draft for it that comes with Draftproof."""

DEFAULT_CONTEXT: Final = 4096
"""Most tokens per slot where max_context is not set and the model allows more."""

DType = Literal["auto", "float32", "bfloat16", "float16", "int8"]
Backend = Literal["transformers", "llamacpp"]
_DTYPES: Final = get_args(DType)
_BACKENDS: Final = get_args(Backend)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which model to load, and how.

    Attributes:
        model: Hugging Face id, folder, .gguf file, folder of a distilled draft, "smollm2-135m-instruct" for the
            embedded model, or "smollm2-135m-instruct-draft" for its draft.
        dtype: of weights and KV; "auto" takes what the checkpoint says (bfloat16 for the embedded model). A packed
            forward on a CPU without arithmetic of 16 bits keeps KV in float32.
        device: "auto" (CUDA where there is one), "cpu", "cuda" or "cuda:n".
        device_map: Accelerate's map ("auto", "balanced", …) for a model larger than one device; overrides device.
        slots: sequences whose KV is kept at once.
        max_context: most tokens per slot; None takes the model's own limit, at most 4096.
        revision: branch, tag or commit on the hub.
        batch_invariant: bit-equal logits whatever the batch, the chunks and the blocks, for several times the compute.
        packed: run Llama-family models on CPUs by the engine's own packed forward instead of transformers' code.
        threads: CPU threads of a forward pass, for the whole process; None leaves PyTorch's choice.
        backend: what computes: "transformers", or "llamacpp", which takes a .gguf file as it is stored. There dtype is
            that of the KV alone, and "auto" is float32; device_map, revision and batch_invariant don't exist.
    """

    model: str = EMBEDDED
    dtype: DType = "auto"
    device: str = "auto"
    device_map: str | None = None
    slots: int = 8
    max_context: int | None = None
    revision: str | None = None
    batch_invariant: bool = False
    packed: bool = True
    threads: int | None = None
    backend: Backend = "transformers"

    def __post_init__(self) -> None:
        if not self.model:
            raise ConfigError("model", "must name a model: a Hugging Face id, a folder or a .gguf file")
        if self.dtype not in _DTYPES:
            raise ConfigError("dtype", f"must be one of {', '.join(_DTYPES)}, got {self.dtype!r}")
        kind, _, index = self.device.partition(":")
        if kind not in ("auto", "cpu", "cuda") or (index and not (kind == "cuda" and index.isdigit())):
            raise ConfigError("device", f"must be auto, cpu, cuda or cuda:n, got {self.device!r}")
        _at_least_one("slots", self.slots)
        if self.max_context is not None:
            _at_least_one("max_context", self.max_context)
        if self.threads is not None:
            _at_least_one("threads", self.threads)
        if self.backend not in _BACKENDS:
            raise ConfigError("backend", f"must be one of {', '.join(_BACKENDS)}, got {self.backend!r}")
        if self.dtype == "int8" and not self.packed:
            raise ConfigError("dtype", "only the packed forward computes int8")
        if self.backend == "llamacpp":
            if self.dtype == "int8":
                raise ConfigError("dtype", "the llamacpp backend computes weights as their file has them, not as int8")
            for field in ("device_map", "revision", "batch_invariant"):
                if getattr(self, field):
                    raise ConfigError(field, "the llamacpp backend has no such thing; use --backend transformers")


def context_within(config: ModelConfig, limit: int | None) -> int:
    """Most tokens a slot holds, for a model that takes at most `limit`.

    Raises:
        ModelLoadError: more are asked for.
    """
    if config.max_context is None:
        return min(limit or DEFAULT_CONTEXT, DEFAULT_CONTEXT)
    if limit is not None and config.max_context > limit:
        raise ModelLoadError(
            f"{config.model} takes at most {limit} tokens; set max_context to {limit} or less, not {config.max_context}"
        )
    return config.max_context


def _at_least_one(field: str, value: int) -> None:
    if value < 1:
        raise ConfigError(field, f"must be at least 1, got {value}")
