"""Weights of 8 bits: integers with a scale a row, made from what the checkpoint holds; activations keep their 16.

The model that they make is another one than the checkpoint's, and its name and hash say so.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import linear

from draftproof.engine.projections import trained_dtype

COMPUTE_DTYPE: Final = torch.bfloat16
"""Of activations, keys and values: the one that the kernel of few tokens is fast in."""

_LARGEST: Final = 127
# The kernel of few tokens takes as long as that many of them; from there on widening the weights first is cheaper.
_WIDE: Final = 16
_PRODUCT: Final[Any] = torch.ops.aten._weight_int8pack_mm


def quantised(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Integers int8 [out, in] and scales bfloat16 [out], whose product is nearest to weight [out, in]."""
    wide = weight.float()
    # Rounded before the integers are chosen, so that these make up for it.
    scales = (wide.abs().amax(-1) / _LARGEST).clamp_(min=1e-12).bfloat16()
    return (wide / scales.float()[:, None]).round_().clamp_(-_LARGEST, _LARGEST).to(torch.int8), scales


def identity(weights_sha256: bytes) -> bytes:
    """SHA-256 that tells the quantised weights from those they were made of, 32 bytes."""
    return hashlib.sha256(b"int8\0" + weights_sha256).digest()


class Int8Projection:
    """x W^T + b for bfloat16 x [N, in], summed in float32; see `projections.Projection`."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.width = len(weight)
        self.integers, self.scales = quantised(weight)
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        product = self._widened(x) if len(x) >= _WIDE else _PRODUCT(x.contiguous(), self.integers, self.scales)
        return product if self._bias is None else product.add_(self._bias)

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        return self(x).add_(residual)

    def silu(self, x: Tensor) -> Tensor:
        return torch.nn.functional.silu(self(x), inplace=True)

    def times(self, x: Tensor, gate: Tensor) -> Tensor:
        return self(x).mul_(gate)

    def _widened(self, x: Tensor) -> Tensor:
        # integers up to 127 are bfloat16's own: nothing is rounded before the sum
        dtype = trained_dtype()
        return linear(x.to(dtype), self.integers.to(dtype)).mul_(self.scales).to(x.dtype)
