"""Matrix products of the packed forward: weights laid out once for the kernels that read them.

On a CPU a small batch costs what reading the weights costs, so the layout decides the speed: oneDNN's blocked layout
streams at the memory's bandwidth, the plain one is laid out anew at every call. Elementwise neighbours ride along.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

# What torch.compile itself emits for linear layers on CPUs.
_ONEDNN: Final[Any] = torch.ops.mkldnn
_ROWS_HINT: Final = 16


class Projection(Protocol):
    """x W^T + b for x [N, in], and what may follow it; results [N, out] in x's dtype."""

    width: int
    """out."""

    def __call__(self, x: Tensor) -> Tensor:
        """The product alone."""
        ...

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


def project(weight: Tensor, bias: Tensor | None = None) -> Projection:
    """The fastest projection that this machine computes for weight [out, in] and bias [out]."""
    if _blocked(weight.dtype):
        return OneDnnProjection(weight, bias)
    return PlainProjection(weight, bias)


def _blocked(dtype: torch.dtype) -> bool:
    if not torch.backends.mkldnn.is_available() or not hasattr(_ONEDNN, "_reorder_linear_weight"):
        return False
    if dtype == torch.bfloat16:
        return bool(_ONEDNN._is_mkldnn_bf16_supported())
    return dtype == torch.float32
