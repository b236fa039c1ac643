"""Random-weight Hugging Face models of a few kilobytes, with tokenizers, that load like any other model."""

from __future__ import annotations

import itertools
import shutil
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from draftproof.engine.quiet import quiet

Kind = Literal["llama", "qwen2", "qwen3", "gpt2"]
KINDS: tuple[Kind, ...] = ("llama", "qwen2", "qwen3", "gpt2")

EOS = "<eos>"
BYTE_LEVEL_FROM = 300
LETTER_SPELLINGS = {" ": "Ġ", "\n": "Ċ"}
LETTERS = string.ascii_lowercase + " .,!?" + string.ascii_uppercase + string.digits + "\n-:;'\"()"
CALIBRATION_ROWS = 64
CALIBRATION_LENGTH = 12

LETTER_TEMPLATE = "{% for m in messages %}{{ m['role'][0] + m['content'] }}{% endfor %}a"
BYTE_TEMPLATE = (
    "{% for m in messages %}{{ '<' + m['role'] + '>' + m['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)


@quiet()
def make_tiny_model(
    folder: str | Path,
    kind: Kind = "llama",
    vocab_size: int = 32,
    seed: int = 0,
    *,
    spread: float = 1.5,
    layers: int = 2,
    max_context: int = 512,
    padding: int = 0,
    chat_template: bool = True,
) -> Path:
    """Saves a random model with its tokenizer.

    Below 300 tokens the tokenizer knows single letters and drops every other character from prompts; from 300 on it is
    a real byte-level BPE, so that characters beyond ASCII split into several tokens. The last id is the end of
    sequence.

    Args:
        folder: where to save; created.
        kind: architecture. llama ties nothing, gpt2 and qwen3 tie head and embedding; qwen2 has attention biases.
        vocab_size: V, at least 3.
        seed: picks the weights.
        spread: standard deviation of the logits over the vocabulary, averaged over random contexts.
        layers: transformer layers.
        max_context: positions the model is configured for.
        padding: ids that only the model has, as padded vocabularies of real families do.
        chat_template: whether the tokenizer has one.

    Returns:
        The folder.
    """
    folder = Path(folder)
    tokenizer = _tokenizer(vocab_size)
    template = BYTE_TEMPLATE if vocab_size >= BYTE_LEVEL_FROM else LETTER_TEMPLATE
    model = _random_model(kind, vocab_size, padding, seed, layers, max_context)
    _spread_logits(model, vocab_size, spread, seed)
    model.save_pretrained(folder)
    # Every special token is named, else some model types add their family's and the vocabulary grows.
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=EOS, pad_token=EOS, unk_token=EOS, model_max_length=max_context
    )
    if chat_template:
        wrapped.chat_template = template
    wrapped.save_pretrained(folder)
    return folder


@quiet()
def make_draft_of(target_folder: str | Path, folder: str | Path, noise: float, seed: int = 1) -> Path:
    """Saves a draft of a tiny model: the same weights with noise on top, the same tokenizer.

    Args:
        target_folder: a folder that `make_tiny_model` made.
        folder: where to save; created.
        noise: size of the noise relative to each tensor. 0 is an exact copy, 0.03 a good draft, 0.3 a bad one; garbage
            is a `make_tiny_model` of another seed.
        seed: picks the noise.

    Returns:
        The folder.
    """
    target_folder, folder = Path(target_folder), Path(folder)
    model = load_plain(target_folder)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            size = parameter.square().mean().sqrt()
            parameter.add_(noise * size * torch.randn(parameter.shape, generator=generator))
            parameter.div_((1 + noise**2) ** 0.5)
    model.save_pretrained(folder)
    for path in target_folder.iterdir():
        if "token" in path.name or "template" in path.name:
            shutil.copy(path, folder / path.name)
    return folder


@quiet()
def load_plain(folder: str | Path, dtype: torch.dtype = torch.float32) -> Any:
    """The model by plain transformers, in evaluation mode on the CPU: the yardstick for everything else."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


def real_vocabulary(folder: str | Path) -> tuple[int, int]:
    """(V without padding, id of the end of sequence) of a tiny model."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    return len(tokenizer), int(tokenizer.eos_token_id)


def _random_model(kind: Kind, vocab_size: int, padding: int, seed: int, layers: int, max_context: int) -> Any:
    sizes: dict[str, Any] = {"vocab_size": vocab_size + padding, "bos_token_id": None, "eos_token_id": vocab_size - 1}
    grouped: dict[str, Any] = {
        **sizes,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": max_context,
    }
    model: Any
    match kind:
        case "llama":
            model = LlamaForCausalLM(LlamaConfig(**grouped, tie_word_embeddings=False))
        case "qwen2":
            model = Qwen2ForCausalLM(Qwen2Config(**grouped, tie_word_embeddings=False))
        case "qwen3":
            model = Qwen3ForCausalLM(Qwen3Config(**grouped, head_dim=16, tie_word_embeddings=True))
        case "gpt2":
            model = GPT2LMHeadModel(GPT2Config(**sizes, n_embd=32, n_layer=layers, n_head=4, n_positions=max_context))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1:
                parameter.copy_(0.1 * noise if name.endswith("bias") else 1 + 0.1 * noise)
            elif name.endswith(("wte.weight", "wpe.weight", "embed_tokens.weight")):
                parameter.copy_(noise)
            else:
                # Wider than the usual initialisation: attention that looks at some tokens more than at others, and
                # layers that weigh as much as the embedding, make the distribution depend on the whole context.
                parameter.copy_(noise * 2 / 32**0.5)
    return model.eval()


def _spread_logits(model: Any, vocab_size: int, spread: float, seed: int) -> None:
    """Scales the last norm, which no tie shares, until the logits have the wanted standard deviation."""
    generator = torch.Generator().manual_seed(seed)
    contexts = torch.randint(vocab_size, (CALIBRATION_ROWS, CALIBRATION_LENGTH), generator=generator)
    norm = model.transformer.ln_f if hasattr(model, "transformer") else model.model.norm
    with torch.no_grad():
        logits = model(contexts).logits[:, :, :vocab_size]
        scale = spread / logits.std(dim=-1).mean()
        for parameter in norm.parameters():
            parameter.mul_(scale)


def _tokenizer(vocab_size: int) -> Tokenizer:
    """Byte-level BPE of vocab_size - 1 entries, made up where there are too few, and the end of sequence.

    The small one is byte-level too, over a few letters: some model types (qwen2) rebuild everything but vocabulary and
    merges with their family's own byte-level parts when they load a tokenizer.
    """
    if vocab_size < 3:
        raise ValueError(f"vocab_size must be at least 3, got {vocab_size}")
    room = vocab_size - 1
    if vocab_size >= BYTE_LEVEL_FROM:
        characters = sorted(pre_tokenizers.ByteLevel.alphabet())
        pairs = list(itertools.islice(_pairs(), room - len(characters)))
    else:
        characters = [LETTER_SPELLINGS.get(letter, letter) for letter in LETTERS[:room]]
        pairs = []
    entries = characters + [left + right for left, right in pairs]
    entries += [f"<{token_id}>" for token_id in range(len(entries), room)]
    tokenizer = Tokenizer(models.BPE(vocab={entry: i for i, entry in enumerate(entries)}, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(EOS, special=True, normalized=False)])
    return tokenizer


def _pairs() -> Iterator[tuple[str, str]]:
    """Merges in order of rank: a space before a letter, then two letters."""
    lower, upper = string.ascii_lowercase, string.ascii_uppercase
    for letter in lower:
        yield LETTER_SPELLINGS[" "], letter
    yield from itertools.product(lower, lower)
    yield from itertools.product(upper, lower)
