"""From a `ModelConfig` to an engine and a tokenizer, or one clear line about what is missing."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig, PreTrainedModel

from draftproof.engine import attention, draft_folder, embedded, int8, packed
from draftproof.engine.config import EMBEDDED, EMBEDDED_DRAFT, ModelConfig, context_within
from draftproof.engine.engine import TransformersEngine
from draftproof.engine.forwards import Forward, TransformersForward
from draftproof.engine.gguf_header import token_count
from draftproof.engine.identity import weights_sha256
from draftproof.engine.interface import Tokenizer
from draftproof.engine.quiet import quiet
from draftproof.engine.selfcheck import check, plain_logits
from draftproof.engine.servable import context_limit, refuse_unsupported
from draftproof.engine.tokenizer import HfTokenizer, eos_ids
from draftproof.errors import ModelLoadError

if TYPE_CHECKING:
    from draftproof.engine.llamacpp import LlamaCppEngine

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Source:
    """Where transformers finds a model: its first argument and its keywords."""

    name: str
    location: str
    keywords: dict[str, str]


def load_engine(config: ModelConfig, *, tokenizer: Tokenizer | None = None) -> TransformersEngine | LlamaCppEngine:
    """Loads a model with the backend that the configuration names.

    Args:
        config: what to load.
        tokenizer: the model's, if loaded already; it knows the real vocabulary size.

    Raises:
        ModelLoadError: the model can't be found, read or served; the message says what to do.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    if config.backend == "transformers":
        return load_transformers(config, tokenizer=tokenizer)
    # The package isn't there unless it was asked for.
    from draftproof.engine import llamacpp

    path = llamacpp.gguf_path(config)
    return llamacpp.load(config, find(config).name, path, tokenizer or load_tokenizer(config))


def load_transformers(config: ModelConfig, *, tokenizer: Tokenizer | None = None) -> TransformersEngine:
    """Loads a transformers model and checks that the engine computes what the model does.

    Args:
        config: what to load.
        tokenizer: the model's, if loaded already; it knows the real vocabulary size.

    Raises:
        ModelLoadError: the model can't be found, read or served; the message says what to do.
    """
    source = find(config)
    with quiet(), _clear_errors(config.model):
        settings = AutoConfig.from_pretrained(source.location, **source.keywords)
        refuse_unsupported(config.model, settings)
        if tokenizer is None:
            tokenizer = load_tokenizer(config)
        model = _load_model(source, config)
    head = model.get_output_embeddings()
    vocab_size = min(getattr(head, "out_features", head.weight.shape[0]), tokenizer.vocab_size)
    max_context = context_within(config, context_limit(model.config.get_text_config()))
    name, sha256 = source.name, weights_sha256(model)
    if quantises(config, model):
        name, sha256 = f"{name} (int8)", int8.identity(sha256)
    settings = copy.deepcopy(model.config)

    def make(run: Forward) -> TransformersEngine:
        return TransformersEngine(
            run,
            name=name,
            vocab_size=vocab_size,
            slots=config.slots,
            max_context=max_context,
            weights_sha256=sha256,
            batch_invariant=config.batch_invariant,
            settings=settings,
            device=device,
        )

    embeddings: Tensor = model.get_input_embeddings().weight  # type: ignore[assignment]
    device = embeddings.device
    with quiet(), _clear_errors(config.model):
        expected = plain_logits(model, vocab_size, max_context)
        return runnable(model, lambda: _load_model(source, config), config, max_context, make, expected)


def runnable(
    model: PreTrainedModel,
    again: Callable[[], PreTrainedModel],
    config: ModelConfig,
    max_context: int,
    make: Callable[[Forward], TransformersEngine],
    expected: Tensor,
) -> TransformersEngine:
    """An engine over the fastest forward that computes what the model does.

    Args:
        model: used up.
        again: reads it once more.
        config: whether the packed forward is wanted.
        max_context: positions to prepare.
        make: from a forward to an engine.
        expected: the model's `plain_logits`.

    Raises:
        ModelLoadError: none does; or quantised weights are wanted, and the packed forward doesn't.
    """
    layers = int(model.config.get_text_config().num_hidden_layers)
    quantise = quantises(config, model)
    if quantise and not packed.supports(model):
        kinds = ", ".join(sorted(packed.MODEL_TYPES))
        raise ModelLoadError(f"int8 weights are for dense {kinds} models on CPUs, not for {config.model}")
    if quantise:
        # what the model computes, as near as 16 bits are compared
        expected = expected.to(int8.COMPUTE_DTYPE)
    if config.packed and packed.supports(model):
        try:
            # A distilled draft proposes token by token.
            run = packed.pack(model, max_context, widen=draft_folder.describes(model.config), int8=quantise)
            engine = make(run)
            check(engine, expected, layers)
            return engine
        except (ModelLoadError, RuntimeError) as error:
            if quantise:
                raise
            log.warning("the packed forward doesn't fit; transformers' own runs instead", reason=str(error))
            model = again()
    engine = make(TransformersForward(model))
    check(engine, expected, layers)
    return engine


def quantises(config: ModelConfig, model: PreTrainedModel) -> bool:
    """Whether the configuration wants int8 weights made out of the model's."""
    return config.dtype == "int8" and not draft_folder.describes(model.config)


def load_model(config: ModelConfig) -> PreTrainedModel:
    """Transformers' own model, for whoever needs more than an engine gives.

    Raises:
        ModelLoadError: it can't be found or read, or its context is shorter than config.max_context.
    """
    source = find(config)
    with quiet(), _clear_errors(config.model):
        model = _load_model(source, config)
    context_within(config, context_limit(model.config.get_text_config()))
    return model


def load_tokenizer(config: ModelConfig) -> HfTokenizer:
    """Loads the model's tokenizer, its end-of-sequence ids and its chat template; a draft's is its base's.

    Raises:
        ModelLoadError: there is none, or it can't be read.
    """
    source = _base(find(config))
    with quiet(), _clear_errors(config.model):
        tokenizer = AutoTokenizer.from_pretrained(source.location, **source.keywords)
        return HfTokenizer(
            tokenizer,
            eos_ids(source.location, source.keywords, tokenizer),
            limit=token_count(Path(config.model).expanduser()) if "gguf_file" in source.keywords else None,
        )


def find(config: ModelConfig) -> Source:
    """Resolves the model's name; prepares the embedded model if it is the one.

    Raises:
        ModelLoadError: a path that isn't there or holds no model.
    """
    if config.model.lower() == EMBEDDED:
        if config.backend == "llamacpp":
            embedded.gguf()  # before its weights are made, which then needs no second download
        return Source(EMBEDDED, str(embedded.prepare()), {})
    if config.model.lower() == EMBEDDED_DRAFT:
        return Source(EMBEDDED_DRAFT, str(embedded.DRAFT), {})
    path = Path(config.model).expanduser()
    if config.model.lower().endswith(".gguf"):
        if not path.is_file():
            raise ModelLoadError(f"no file {config.model}; give the path of a .gguf file, a folder or a hub id")
        return Source(path.stem, str(path.parent), {"gguf_file": path.name})
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelLoadError(f"{config.model} holds no config.json; give a folder made by save_pretrained")
        return Source(path.name, str(path), {})
    if path.is_absolute() or config.model.startswith((".", "~")) or config.model.count("/") > 1:
        raise ModelLoadError(f"no folder {config.model}; give an existing folder, a .gguf file or a hub id")
    keywords = {} if config.revision is None else {"revision": config.revision}
    return Source(config.model, config.model, keywords)


def _base(source: Source) -> Source:
    """Where a draft's embedding and tokenizer come from; any other model is its own base."""
    if not draft_folder.is_draft(source.location):
        return source
    base = draft_folder.base_of(source.location)
    return source if base is None else find(ModelConfig(model=base))


def _load_draft(source: Source, config: ModelConfig, dtype: torch.dtype | None) -> PreTrainedModel:
    base = _base(source)
    model = draft_folder.load(Path(source.location), None if base is source else base.location, dtype)
    placed: PreTrainedModel = model.to(_device(config.device))  # type: ignore[arg-type]
    return placed


def _load_model(source: Source, config: ModelConfig) -> PreTrainedModel:
    as_stored = config.dtype in ("auto", "int8")
    return read_model(source, config, None if as_stored else getattr(torch, config.dtype))[0]


def read_model(
    source: Source, config: ModelConfig, dtype: torch.dtype | None, *, tolerant: bool = False
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Reads a model, for inference alone; also what transformers says of tensors that are missing, unknown, misshapen.

    Args:
        source: where from.
        config: devices.
        dtype: of the weights; None takes the checkpoint's.
        tolerant: tensors of other shapes are told, not raised.

    Raises:
        ModelLoadError: it doesn't fit on its devices, or a distilled draft doesn't fit its base.
    """
    found: dict[str, Any] = {}
    if draft_folder.is_draft(source.location):
        model = _load_draft(source, config, dtype)
    else:
        model, found = _load_pretrained(source, config, dtype, tolerant)
    # a model made from a configuration would drop out as in training
    model.eval()
    model.requires_grad_(False)
    return model, found


def _load_pretrained(
    source: Source, config: ModelConfig, dtype: torch.dtype | None, tolerant: bool
) -> tuple[PreTrainedModel, dict[str, Any]]:
    keywords: dict[str, Any] = {**source.keywords, "dtype": "auto" if dtype is None else dtype}
    if "gguf_file" in keywords:
        keywords["quantization_config"] = GgufConfig(dequantize=True)
    if config.device_map is not None:
        keywords["device_map"] = config.device_map
    elif (device := _device(config.device)) != "cpu":
        keywords["device_map"] = {"": device}
    read: Any = AutoModelForCausalLM.from_pretrained(
        source.location, output_loading_info=True, ignore_mismatched_sizes=tolerant, **keywords
    )
    model: PreTrainedModel
    model, found = read
    if any(parameter.is_meta for parameter in model.parameters()):
        raise ModelLoadError(
            f"{config.model} doesn't fit on the devices of device_map={config.device_map!r}, and layers that are moved"
            " in and out aren't supported; use more or larger devices, or a smaller dtype"
        )
    return model, found


def _device(name: str) -> str:
    cuda = torch.cuda.is_available()
    if name.startswith("cuda") and not cuda:
        raise ModelLoadError(f"device {name} was asked for, but PyTorch sees no CUDA device; use --device cpu")
    return ("cuda" if cuda else "cpu") if name == "auto" else name


@contextmanager
def _clear_errors(model: str) -> Iterator[None]:
    """Turns whatever loading raises into one line."""
    try:
        yield
    except ModelLoadError:
        raise
    except attention.UnsupportedAttentionError as error:
        raise ModelLoadError(f"{model} can't be served: it uses {error}") from error
    except torch.OutOfMemoryError as error:
        raise ModelLoadError(
            f"{model} doesn't fit in the device's memory; use fewer slots, a smaller max_context or dtype, or a"
            " device_map over several devices"
        ) from error
    except Exception as error:
        raise ModelLoadError(f"{model} can't be loaded: {_reason(model, error)}") from error


def _reason(model: str, error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, OSError) and not Path(model).expanduser().exists():
        return (
            "it is no local folder, and the Hugging Face hub has no such model or can't be reached; check the"
            " spelling and the network, or give a folder or a .gguf file"
        )
    return lines[0] if lines else type(error).__name__
