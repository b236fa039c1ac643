"""Telling one set of weights from another."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor
from transformers import PreTrainedModel


def weights_sha256(model: PreTrainedModel) -> bytes:
    """SHA-256 over the names, shapes, dtypes and bits of all weights, 32 bytes; the same on every device."""
    named = sorted(model.named_parameters(), key=lambda pair: pair[0])
    with ThreadPoolExecutor(max(1, torch.get_num_threads())) as pool:
        digests = list(pool.map(_digest, (parameter.detach() for _, parameter in named)))
    whole = hashlib.sha256()
    for (name, parameter), digest in zip(named, digests, strict=True):
        whole.update(f"{name}\0{parameter.dtype}\0{tuple(parameter.shape)}\0".encode())
        whole.update(digest)
    return whole.digest()


def _digest(weights: Tensor) -> bytes:
    flat = weights.contiguous().reshape(-1).view(torch.uint8).cpu()
    return hashlib.sha256(flat.numpy().data).digest()
