"""Attention over KV slots, registered with transformers under its public interface.

The model runs one packed sequence of all rows' tokens; this function writes their keys and values into the slots and
lets every row attend to its own slot alone. Shape letters: N packed tokens, H query heads, K key heads, R = H / K,
g rows of a group, n tokens per row, L keys seen.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from draftproof.engine.layout import BatchLayout, Group
from draftproof.engine.slots import LayerKv

NAME: Final = "draftproof_ragged"

# Past this many tokens the mask, repeated per query head, costs more than it saves.
_PACKED_HEADS_LIMIT: Final = 64

# What transformers passes along and this function may ignore: they change no number here.
_HARMLESS: Final = frozenset(
    {"position_ids", "position_embeddings", "use_cache", "cache", "output_attentions", "output_hidden_states"}
)


class UnsupportedAttentionError(Exception):
    """The model asks its attention for something this one doesn't do."""


def ragged_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    layout: BatchLayout | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    **extra: object,
) -> tuple[Tensor, None]:
    """Writes keys and values [1, K, N, dim] into their slots, then attends with query [1, H, N, dim].

    Returns:
        [1, N, H, value_dim], and no attention weights.

    Raises:
        UnsupportedAttentionError: the model wants more than causal attention with an optional sliding window.
    """
    _refuse(module, attention_mask, layout, dropout, is_causal, extra)
    assert layout is not None
    index = int(module.layer_idx)  # type: ignore[arg-type]
    return attend(layout, index, query[0], key[0], value[0], scaling, sliding_window)[None], None


def attend(
    layout: BatchLayout,
    layer: int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float | None,
    sliding_window: int | None,
) -> Tensor:
    """Writes keys and values [K, N, dim] of a layer into their slots, then attends with query [H, N, dim].

    Returns:
        [N, H, value_dim].
    """
    layout.layers_seen.add(layer)
    kv = layout.store.layer(layer, key, value)
    _write(kv, layout, key, value)
    if len(layout.groups) == 1:
        return _attend(layout, layout.groups[0], kv, query, scaling, sliding_window)
    out = query.new_empty(query.shape[1], query.shape[0], value.shape[2])
    for group in layout.groups:
        rows = slice(group.offset, group.offset + group.tokens)
        out[rows] = _attend(layout, group, kv, query[:, rows], scaling, sliding_window)
    return out


def register() -> None:
    """Makes the function known to transformers as `NAME`; without a mask function of that name no mask is built."""
    AttentionInterface.register(NAME, ragged_attention)


def _refuse(
    module: torch.nn.Module,
    attention_mask: Tensor | None,
    layout: BatchLayout | None,
    dropout: float,
    is_causal: bool | None,
    extra: dict[str, object],
) -> None:
    if layout is None:
        raise UnsupportedAttentionError("attention layers that don't receive the batch layout")
    if attention_mask is not None:
        raise UnsupportedAttentionError("an attention mask of its own")
    if dropout:
        raise UnsupportedAttentionError("dropout")
    if is_causal is False or not getattr(module, "is_causal", True):
        raise UnsupportedAttentionError("bidirectional attention")
    for name, setting in extra.items():
        if setting is not None and setting is not False and name not in _HARMLESS:
            raise UnsupportedAttentionError(f"attention with {name}")


def _write(kv: LayerKv, layout: BatchLayout, key: Tensor, value: Tensor) -> None:
    """Stores key [K, N, dim] and value [K, N, value_dim]."""
    if len(layout.groups) == 1 and len(layout.groups[0].spans) == 1:
        span = layout.groups[0].spans[0]
        kv.keys[span.slot, :, span.start : span.end] = key
        kv.values[span.slot, :, span.start : span.end] = value
        return
    slots, places = layout.slot_indices(key.device), layout.places(key.device)
    kv.keys[slots, :, places] = key.transpose(0, 1)
    kv.values[slots, :, places] = value.transpose(0, 1)


def _attend(
    layout: BatchLayout, group: Group, kv: LayerKv, query: Tensor, scaling: float | None, window: int | None
) -> Tensor:
    """Attention of one group's query [H, g * n, dim].

    Returns:
        [g * n, H, value_dim].
    """
    g, n = len(group.spans), group.count
    heads, kv_heads = query.shape[0], kv.keys.shape[1]
    repeats = heads // kv_heads
    first_key = 0 if window is None else max(0, min(span.start for span in group.spans) - window + 1)
    keys = _slot_view(kv.keys, layout, group, first_key)
    values = _slot_view(kv.values, layout, group, first_key)
    by_row = query.unflatten(1, (g, n)).transpose(0, 1)  # [g, H, n, dim]
    if n <= _PACKED_HEADS_LIMIT:
        # Query heads that share a key head become more queries of it, so that keys and values are never copied.
        mask = None
        if n > 1 or not _sees_all(group, first_key, window):
            mask = layout.mask(group, first_key, window, repeats if n > 1 else 1, query.dtype, query.device)
        packed = by_row.reshape(g, kv_heads, repeats * n, -1)
        out = scaled_dot_product_attention(packed, keys, values, attn_mask=mask, scale=scaling)
        return out.reshape(g, heads, n, -1).permute(0, 2, 1, 3).flatten(0, 1)
    grouped = repeats > 1
    if grouped and query.device.type != "cpu":
        # With a mask, CUDA's fast kernels take no shared key heads.
        keys, values = keys.repeat_interleave(repeats, dim=1), values.repeat_interleave(repeats, dim=1)
        grouped = False
    fresh = window is None and not group.has_tree and all(span.start == 0 for span in group.spans)
    mask = None if fresh else layout.mask(group, first_key, window, 1, query.dtype, query.device)
    out = scaled_dot_product_attention(
        by_row, keys, values, attn_mask=mask, is_causal=fresh, scale=scaling, enable_gqa=grouped
    )
    return out.transpose(1, 2).flatten(0, 1)


def _slot_view(cache: Tensor, layout: BatchLayout, group: Group, first_key: int) -> Tensor:
    """The group's part of a cache, [g, K, end - first_key, dim]: a view where the slots are neighbours."""
    around = group.slot_range
    if around is not None:
        return cache[around[0] : around[1], :, first_key : group.end]
    return cache[:, :, first_key : group.end].index_select(0, layout.group_slots(group, cache.device))


def _sees_all(group: Group, first_key: int, window: int | None) -> bool:
    """Whether the single token of every span sees each key from first_key to the group's end."""
    return all(span.end == group.end and (window is None or span.end - window <= first_key) for span in group.spans)
