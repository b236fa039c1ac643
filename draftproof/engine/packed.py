"""The packed forward: Llama-family models on CPUs in as few operations as PyTorch allows.

The same model and weights as transformers' own code computes, over the same layout and slots; only roundings differ, as
they do between any two kernels, and where the CPU has no 16-bit arithmetic there are fewer of them. What it leaves out
is Python between operations, weights laid out anew at every call, keys and values copied twice, and the head for rows
that nobody reads.

Shape letters: N packed tokens, H query heads, K key heads, D head width, E hidden width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import embedding
from transformers import PreTrainedModel

from draftproof.engine import attention
from draftproof.engine.int8 import COMPUTE_DTYPE, Int8Projection
from draftproof.engine.layout import BatchLayout
from draftproof.engine.projections import Head, Projection, ReducedProjection, compute_dtype, project

_Make = Callable[[Tensor, Tensor | None], Projection]

MODEL_TYPES: Final = frozenset({"llama", "mistral", "qwen2", "qwen3"})


@dataclass(frozen=True, slots=True)
class Layer:
    """One block's weights.

    Attributes:
        norm, mlp_norm: [E].
        qkv: E -> (H + 2 K) D.
        qk_norm: [H + K, D]; None without one.
        out: H D -> E.
        gate, up: E -> width of the MLP.
        down: width of the MLP -> E.
        window: tokens that attention looks back; None: all.
    """

    norm: Tensor
    qkv: Projection
    qk_norm: Tensor | None
    out: Projection
    mlp_norm: Tensor
    gate: Projection
    up: Projection
    down: Projection
    window: int | None


@dataclass(frozen=True, slots=True)
class PackedModel:
    """A model's weights, ready to run.

    Attributes:
        embeddings: [ids, E]; int8 where they are a quantised head's.
        embedding_scales: [ids], of int8 embeddings.
        layers: in order.
        norm: [E].
        head: E -> vocabulary.
        cos, sin: [positions, 1, D]; the first half of sin is negated.
        heads, kv_heads: H, K.
        eps: of the norms, float32 [1]: a tensor, since PyTorch takes longer to make one of a number than to add it.
        scaling: of the attention's logits.
    """

    embeddings: Tensor
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Head
    cos: Tensor
    sin: Tensor
    heads: int
    kv_heads: int
    eps: Tensor
    scaling: float
    embedding_scales: Tensor | None = None
    name: str = "packed"

    @property
    def input_ids_limit(self) -> int:
        """Ids that have an embedding are below it."""
        return len(self.embeddings)

    def __call__(
        self, layout: BatchLayout, token_ids: Sequence[int], positions: Sequence[int], keep: Sequence[int]
    ) -> Tensor:
        """Runs packed tokens; see `Forward`."""
        eps = self.eps
        ids = torch.tensor(token_ids)
        x = embedding(ids, self.embeddings).to(self.norm.dtype)
        if self.embedding_scales is not None:
            x.mul_(self.embedding_scales[ids, None])
        where = torch.tensor(positions)
        cos, sin = self.cos[where], self.sin[where]
        for index, layer in enumerate(self.layers):
            qkv = layer.qkv(rms_norm(x, layer.norm, eps)).unflatten(-1, (-1, self.cos.shape[-1]))
            attended = self._attend(layout, index, layer, qkv, cos, sin)
            x = layer.out.plus(attended, x)
            h = rms_norm(x, layer.mlp_norm, eps)
            x = layer.down.plus(layer.up.times(h, layer.gate.silu(h)), x)
        if not keep:
            return x.new_empty(0, self.head.width)
        if list(keep) != list(range(len(token_ids))):
            x = x[torch.tensor(keep)]
        return self.head(rms_norm(x, self.norm, eps))

    def _attend(self, layout: BatchLayout, index: int, layer: Layer, qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Attention of qkv [N, H + 2 K, D]; [N, H D]."""
        turned, value = qkv[:, : self.heads + self.kv_heads], qkv[:, self.heads + self.kv_heads :]
        if layer.qk_norm is not None:
            turned = rms_norm(turned, layer.qk_norm, self.eps)
        turned = rotated(turned, cos, sin).transpose(0, 1)
        return attention.attend(
            layout,
            index,
            turned[: self.heads],
            turned[self.heads :],
            value.transpose(0, 1),
            self.scaling,
            layer.window,
        ).flatten(1)


def rms_norm(x: Tensor, weight: Tensor, eps: Tensor) -> Tensor:
    """x [..., E] over its root mean square, times weight; twice as fast on few rows as PyTorch's, and as exact."""
    wide = x.float()
    scale = torch.add(eps, (wide * wide).sum(-1, keepdim=True), alpha=1 / x.shape[-1]).rsqrt_()
    return (wide * scale).to(x.dtype) * weight


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of heads x [N, heads, D] by tables [N, 1, D], halves facing each other as in Llama."""
    half = x.shape[-1] // 2
    turned = x * cos
    turned[..., :half].addcmul_(x[..., half:], sin[..., :half])
    turned[..., half:].addcmul_(x[..., :half], sin[..., half:])
    return turned


def supports(model: PreTrainedModel) -> bool:
    """Whether `pack` knows the architecture: a dense Llama-like model on the CPU, with rotations that don't change."""
    settings: Any = model.config
    rope = getattr(settings, "rope_parameters", None) or {}
    return (
        settings.model_type in MODEL_TYPES
        and type(model).__name__.endswith("ForCausalLM")
        and settings.hidden_act == "silu"
        and rope.get("rope_type") in ("default", "linear", "llama3", "yarn")
        and getattr(settings, "partial_rotary_factor", None) in (None, 1.0)
        and all(parameter.device.type == "cpu" for parameter in model.parameters())
    )


@torch.inference_mode()
def pack(model: Any, context: int, *, widen: bool = False, int8: bool = False) -> PackedModel:
    """Takes the weights out of a model that is supported, layer by layer, so that they are never in memory twice.

    Args:
        model: a transformers model.
        context: positions to prepare.
        widen: compute in float32 even where the CPU has arithmetic of 16 bits: faster in passes of few tokens.
        int8: quantise all matrices; with a head that is the embedding, both are one.
    """
    core = model.model
    scaling = core.layers[0].self_attn.scaling
    heads = model.config.num_attention_heads
    kv_heads = model.config.num_key_value_heads
    # Mistral's attention reads it from the configuration; the others know their own.
    window = model.config.sliding_window if model.config.model_type == "mistral" else None
    stored = core.embed_tokens.weight
    dtype = COMPUTE_DTYPE if int8 else compute_dtype(stored.dtype, widen=widen)
    make: _Make = Int8Projection if int8 else partial(project, widen=widen)
    head = _head(model.lm_head, make)
    shared = head if isinstance(head, Int8Projection) and model.lm_head.weight is stored else None
    cos, sin = core.rotary_emb(torch.empty(0, dtype=dtype), torch.arange(context)[None])
    sin = torch.cat([-sin[..., : sin.shape[-1] // 2], sin[..., sin.shape[-1] // 2 :]], dim=-1)
    layers = []
    for index in range(len(core.layers)):
        layers.append(_layer(core.layers[index], heads, kv_heads, window, dtype, make))
        core.layers[index] = torch.nn.Identity()
    return PackedModel(
        embeddings=shared.integers if shared else stored.detach(),
        embedding_scales=shared.scales if shared else None,
        layers=tuple(layers),
        norm=core.norm.weight.detach().to(dtype),
        head=head,
        cos=cos[0, :, None].clone(),
        sin=sin[0, :, None].clone(),
        heads=heads,
        kv_heads=kv_heads,
        eps=torch.tensor([core.norm.variance_epsilon]),
        scaling=scaling,
    )


def _layer(layer: Any, heads: int, kv_heads: int, window: int | None, dtype: torch.dtype, make: _Make) -> Layer:
    attend, mlp = layer.self_attn, layer.mlp
    parts = (attend.q_proj, attend.k_proj, attend.v_proj)
    biases = [part.bias.detach() for part in parts if part.bias is not None]
    qk_norm = None
    if hasattr(attend, "q_norm"):
        norms = [attend.q_norm.weight.detach()] * heads + [attend.k_norm.weight.detach()] * kv_heads
        qk_norm = torch.stack(norms).to(dtype)
    return Layer(
        norm=layer.input_layernorm.weight.detach().to(dtype),
        qkv=make(torch.cat([part.weight.detach() for part in parts]), torch.cat(biases) if biases else None),
        qk_norm=qk_norm,
        out=make(attend.o_proj.weight.detach(), _bias(attend.o_proj)),
        mlp_norm=layer.post_attention_layernorm.weight.detach().to(dtype),
        gate=make(mlp.gate_proj.weight.detach(), _bias(mlp.gate_proj)),
        up=make(mlp.up_proj.weight.detach(), _bias(mlp.up_proj)),
        down=make(mlp.down_proj.weight.detach(), _bias(mlp.down_proj)),
        window=getattr(attend, "sliding_window", window),
    )


def _head(head: Any, make: _Make) -> Head:
    token_ids: Tensor | None = getattr(head, "token_ids", None)
    known = make(head.weight.detach(), _bias(head))
    return known if token_ids is None else ReducedProjection(known, token_ids, head.out_features)


def _bias(linear: Any) -> Tensor | None:
    bias: Tensor | None = getattr(linear, "bias", None)
    return None if bias is None else bias.detach()
