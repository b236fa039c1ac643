"""Matrix products of the packed forward: weights laid out once for the kernels that read them.

On a CPU a small batch costs what reading the weights costs, so the layout decides the speed: oneDNN's blocked layout
streams at the memory's bandwidth, the plain one is laid out anew at every call. Elementwise neighbours ride along.

Products in float32 read weights of 16 bits as halves: FBGEMM widens them in registers, so a pass reads two bytes a
weight, and nothing is rounded but by float32. That is how float32 is computed where the checkpoint has no more than 16
bits, how passes of few tokens are fastest, and all that CPUs without instructions for 16-bit floats (AVX2) can do well.
"""

from __future__ import annotations

import math
from typing import Any, Final, Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

# What torch.compile itself emits for linear layers on CPUs.
_ONEDNN: Final[Any] = torch.ops.mkldnn
_FBGEMM: Final[Any] = torch.ops.quantized
_ROWS_HINT: Final = 16
# The largest weight is scaled to just below this power of two, float16's largest.
_HALF_EXPONENT: Final = 15
# Rows that tell most matrices of more than 16 bits at once.
_SAMPLE: Final = 4


class Head(Protocol):
    """x W^T + b for x [N, in]; results [N, out] in x's dtype."""

    width: int
    """out."""

    def __call__(self, x: Tensor) -> Tensor:
        """The product alone."""
        ...


class Projection(Head, Protocol):
    """A product and what may follow it."""

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        """The product plus [N, out]."""
        ...

    def silu(self, x: Tensor) -> Tensor:
        """The product's SiLU."""
        ...

    def times(self, x: Tensor, gate: Tensor) -> Tensor:
        """The product times [N, out]."""
        ...


class PlainProjection:
    """Weights as they are."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.width = len(weight)
        self._weight, self._bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        return linear(x, self._weight, self._bias)

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        return linear(x, self._weight, self._bias).add_(residual)

    def silu(self, x: Tensor) -> Tensor:
        return silu(linear(x, self._weight, self._bias), inplace=True)

    def times(self, x: Tensor, gate: Tensor) -> Tensor:
        return linear(x, self._weight, self._bias).mul_(gate)


class OneDnnProjection:
    """Weights in oneDNN's blocked layout; elementwise operations in the product's epilogue, before it is rounded."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.width = len(weight)
        self._weight: Tensor = _ONEDNN._reorder_linear_weight(weight.contiguous(), _ROWS_HINT)
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        product: Tensor = _ONEDNN._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return product

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        product: Tensor = _ONEDNN._linear_pointwise.binary(x, residual, self._weight, self._bias, "add")
        return product

    def silu(self, x: Tensor) -> Tensor:
        product: Tensor = _ONEDNN._linear_pointwise(x, self._weight, self._bias, "swish", [], "")
        return product

    def times(self, x: Tensor, gate: Tensor) -> Tensor:
        product: Tensor = _ONEDNN._linear_pointwise.binary(x, gate, self._weight, self._bias, "mul")
        return product


class HalfProjection:
    """Weights of 16 bits read as float16 by float32 products.

    A power of two, divided out again, brings them into float16's range: exact for every bfloat16 above 2^-32 of the
    matrix's largest weight. `halves` says whether all of them are.
    """

    def __init__(self, halves: Tensor, scale: float, bias: Tensor | None) -> None:
        self.width = len(halves)
        self._scale, self._factor = scale, torch.tensor([scale])
        scaled = None if bias is None else bias.float() / scale
        self._packed = _FBGEMM.linear_prepack_fp16(halves.float(), scaled)

    def __call__(self, x: Tensor) -> Tensor:
        product: Tensor = _FBGEMM.linear_dynamic_fp16(x.contiguous(), self._packed)
        return product if self._scale == 1.0 else product.mul_(self._factor)

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        product: Tensor = _FBGEMM.linear_dynamic_fp16(x.contiguous(), self._packed)
        return torch.add(residual, product, alpha=self._scale, out=product)

    def silu(self, x: Tensor) -> Tensor:
        return silu(self(x), inplace=True)

    def times(self, x: Tensor, gate: Tensor) -> Tensor:
        return self(x).mul_(gate)


def compute_dtype(weights: torch.dtype, *, widen: bool = False) -> torch.dtype:
    """What activations, keys and values are kept in for weights of a dtype.

    Args:
        weights: their dtype.
        widen: float32 whatever it is; as it is for 16 bits that would be emulated.
    """
    return torch.float32 if _widened(weights, widen) else weights


class ReducedProjection:
    """A head that knows some tokens of the vocabulary; the logits of all others are −inf."""

    def __init__(self, known: Head, token_ids: Tensor, width: int) -> None:
        self.width = width
        self.known, self._token_ids = known, token_ids

    def __call__(self, x: Tensor) -> Tensor:
        logits = x.new_full((len(x), self.width), float("-inf"))
        return logits.index_copy_(-1, self._token_ids, self.known(x))


def project(weight: Tensor, bias: Tensor | None = None, *, widen: bool = False) -> Projection:
    """The fastest projection that this machine computes for weight [out, in] and bias [out].

    Inputs and results have the dtype that `compute_dtype` names for the same `widen`.
    """
    if compute_dtype(weight.dtype, widen=widen) == torch.float32:
        if _reads_halves() and (found := halves(weight)) is not None:
            return HalfProjection(*found, bias)
        weight, bias = weight.float(), None if bias is None else bias.float()
    if _blocked(weight.dtype):
        return OneDnnProjection(weight, bias)
    return PlainProjection(weight, bias)


def halves(weight: Tensor) -> tuple[Tensor, float] | None:
    """Weights as float16 times a power of two, or None if a bit of one would be lost."""
    if weight.dtype == torch.float16:
        return weight, 1.0
    if len(weight) > _SAMPLE and halves(weight[:_SAMPLE]) is None:
        return None
    largest = float(weight.abs().max())
    exponent = math.frexp(largest)[1] - _HALF_EXPONENT if largest else 0
    scale = 2.0**exponent
    scaled = weight.float().div(scale)
    half = scaled.half()
    return (half, scale) if torch.equal(half.float(), scaled) else None


def trained_dtype() -> torch.dtype:
    """What products of training run in: bfloat16 where the CPU computes in it, else float32."""
    return torch.bfloat16 if _blocked(torch.bfloat16) else torch.float32


def _reads_halves() -> bool:
    return "fbgemm" in torch.backends.quantized.supported_engines


def _widened(dtype: torch.dtype, widen: bool) -> bool:
    if not _reads_halves():
        return False
    return dtype == torch.float16 or (dtype == torch.bfloat16 and (widen or not _blocked(dtype)))


def _blocked(dtype: torch.dtype) -> bool:
    if not torch.backends.mkldnn.is_available() or not hasattr(_ONEDNN, "_reorder_linear_weight"):
        return False
    if dtype == torch.bfloat16:
        return bool(_ONEDNN._is_mkldnn_bf16_supported())
    return dtype == torch.float32
