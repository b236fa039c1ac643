"""Many texts of one model, written in step: every pass feeds each lane one token.

For distillation, where nothing counts but tokens a second. Lanes share a ring of places for keys and values: all write
to the same place at the same time, however long their texts are, and a mask tells each which places are its own. So a
pass is a plain batch without padding or gathering, and a lane whose text ends begins the next at once.

Shape letters: B lanes, K key heads, T places of the ring, D head width, E hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

from draftproof.errors import UnsupportedError

_NAME: Final = "draftproof_lockstep"
_PROBE: Final = 12


class _Ring:
    """Keys and values of all lanes."""

    def __init__(self, lanes: int, places: int) -> None:
        self.lanes, self.places = lanes, places
        self.now = places
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}
        self._begun = torch.full((lanes,), places)
        self._seen = torch.zeros(lanes, 1, 1, places, dtype=torch.bool)

    def begin(self, lane: int, shared: dict[int, tuple[Tensor, Tensor]], length: int) -> None:
        """A lane's text consists of `length` shared tokens, keys and values [K, length, D] a layer."""
        self._begun[lane] = self.now - length
        at = torch.arange(self.now - length, self.now) % self.places
        for layer, (keys, values) in shared.items():
            own_keys, own_values = self.layer(layer, keys, values)
            own_keys[lane][:, at] = keys
            own_values[lane][:, at] = values

    def advance(self) -> Tensor:
        """Goes to the next place, which the pass writes to; positions [B] of its tokens."""
        self.now += 1
        ages = (self.now - 1 - torch.arange(self.places)) % self.places
        lengths = self.now - self._begun
        self._seen = (ages < lengths[:, None])[:, None, None]
        return lengths - 1

    def layer(self, index: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The layer's keys and values [B, K, T, D], made on first use to fit key and value [K, n, D]."""
        if index not in self.layers:
            shapes = ((self.lanes, like.shape[0], self.places, like.shape[2]) for like in (key, value))
            keys, values = (key.new_zeros(shape) for shape in shapes)
            self.layers[index] = keys, values
        return self.layers[index]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        """Writes key and value [B, K, 1, D], then attends with query [B, H, 1, D]; [B, H, D]."""
        keys, values = self.layer(layer, key[0], value[0])
        place = (self.now - 1) % self.places
        keys[:, :, place] = key[:, :, 0]
        values[:, :, place] = value[:, :, 0]
        # the query heads of one key head become its queries
        folded = query.reshape(self.lanes, key.shape[1], -1, query.shape[-1])
        out = scaled_dot_product_attention(folded, keys, values, attn_mask=self._seen, scale=scaling)
        return out.reshape(self.lanes, query.shape[1], -1)


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    ring: _Ring | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **extra: object,
) -> tuple[Tensor, None]:
    if ring is None:
        raise UnsupportedError("the model has attention layers that no keyword reaches; it can't be distilled")
    if sliding_window is not None and sliding_window < ring.places:
        raise UnsupportedError(
            f"texts of {ring.places} tokens don't fit an attention window of {sliding_window}; lower max_length"
        )
    return ring.attend(int(module.layer_idx), query, key, value, scaling)[:, None], None  # type: ignore[arg-type]


class Lockstep:
    """A model that writes in step.

    Attributes:
        lanes: B, texts at once.
        places: most tokens of a text.
        vocab_size: V.
        rows: of the head [V, E]; logits are these times the states.
    """

    def __init__(self, model: PreTrainedModel, *, lanes: int, places: int, vocab_size: int) -> None:
        """Replaces the model's attention: from now on it computes in step alone.

        Args:
            model: on the CPU, in evaluation mode.
            lanes, places, vocab_size: see the attributes.

        Raises:
            UnsupportedError: the model keeps state elsewhere than in keys and values, or changes its logits after the
                head.
        """
        self.lanes, self.places, self.vocab_size = lanes, places, vocab_size
        self._model = model
        head: Any = model.get_output_embeddings()
        self.rows: Tensor = head.weight.detach()[:vocab_size]
        probe = [(7919 * position + 1) % vocab_size for position in range(min(_PROBE, places))]
        expected = self._expected(probe)
        AttentionInterface.register(_NAME, _attention)
        model.set_attn_implementation(_NAME)
        self._check(probe, expected)
        self.share(())

    def share(self, prefix: Sequence[int]) -> None:
        """Drops all texts; those to come begin with these tokens, which are computed once."""
        alone = _Ring(1, max(1, len(prefix)))
        for token in prefix:
            self._states(alone, torch.tensor([token]))
        self._shared = {index: (keys[0], values[0]) for index, (keys, values) in alone.layers.items()}
        self._shared_length = len(prefix)
        self._ring = _Ring(self.lanes, self.places)

    def begin(self, lane: int) -> None:
        """A lane's next token follows the shared ones."""
        self._ring.begin(lane, self._shared, self._shared_length)

    def step(self, token_ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Feeds B tokens, one a lane: logits [B, V], float32, of the next and the states [B, E] they come from."""
        states = self._states(self._ring, torch.tensor(token_ids))
        return (states @ self.rows.T).float(), states

    @torch.inference_mode()
    def _states(self, ring: _Ring, token_ids: Tensor) -> Tensor:
        decoder: Any = self._model.get_decoder()
        positions = ring.advance()[:, None]
        out = decoder(input_ids=token_ids[:, None], position_ids=positions, use_cache=False, ring=ring)
        states: Tensor = out.last_hidden_state[:, 0]
        return states

    @torch.inference_mode()
    def _expected(self, token_ids: list[int]) -> Tensor:
        """States [n, E] of the model's own forward, whose logits have to be the head's."""
        fed = torch.tensor([token_ids])
        decoder: Any = self._model.get_decoder()
        states: Tensor = decoder(input_ids=fed, use_cache=False).last_hidden_state[0]
        logits: Tensor = self._model(input_ids=fed, use_cache=False).logits[0, :, : self.vocab_size].float()
        error = (states @ self.rows.T).float().sub_(logits).abs().max() / logits.abs().max()
        if not error <= (1e-3 if states.dtype == torch.float32 else 0.02):
            raise UnsupportedError("the model changes its logits after the head; it can't be distilled")
        return states

    def _check(self, token_ids: list[int], expected: Tensor) -> None:
        ring = _Ring(1, len(token_ids))
        found = torch.cat([self._states(ring, torch.tensor([token])) for token in token_ids])
        error = float((found.float() - expected.float()).abs().max() / expected.float().std())
        if not error <= (1e-3 if expected.dtype == torch.float32 else 0.2):
            raise UnsupportedError(
                f"in step the model computes otherwise than in its own forward (off by {error:.2g} standard"
                " deviations); it can't be distilled"
            )
