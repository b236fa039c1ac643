"""What the ragged attention refuses, and how spans are grouped."""

from __future__ import annotations

import pytest
import torch

from draftproof.engine.attention import UnsupportedAttentionError, ragged_attention
from draftproof.engine.layout import BatchLayout, Span, plan
from draftproof.engine.slots import KvSlots


class Layer(torch.nn.Module):
    layer_idx = 0


def attend(**settings: object) -> None:
    layout = BatchLayout(KvSlots(1, 4), plan([Span(0, 0, 2)]))
    tensors = [torch.ones(1, 1, 2, 4)] * 3
    arguments: dict[str, object] = {"attention_mask": None, "layout": layout, **settings}
    ragged_attention(Layer(), *tensors, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"softcap": 50.0}, "softcap"),
        ({"s_aux": torch.ones(1)}, "s_aux"),
        ({"position_bias": torch.ones(1)}, "position_bias"),
        ({"dropout": 0.1}, "dropout"),
        ({"is_causal": False}, "bidirectional"),
        ({"attention_mask": torch.ones(1)}, "mask of its own"),
        ({"layout": None}, "batch layout"),
    ],
)
def test_anything_it_does_not_compute_is_refused(settings, message):
    with pytest.raises(UnsupportedAttentionError, match=message):
        attend(**settings)


def test_harmless_keywords_pass():
    attend(use_cache=False, position_ids=torch.zeros(1, 2), softcap=None, output_attentions=False)


def test_spans_of_equal_count_share_a_group_ordered_by_slot():
    groups = plan([Span(3, 10, 5), Span(0, 0, 30), Span(1, 12, 5), Span(2, 9, 5)])
    assert [[span.slot for span in group.spans] for group in groups] == [[1, 2, 3], [0]]
    assert [group.offset for group in groups] == [0, 15]
    assert groups[0].slot_range == (1, 4)
    assert groups[0].end == 17


def test_slots_with_gaps_have_no_range():
    (group,) = plan([Span(0, 5, 1), Span(2, 5, 1)])
    assert group.slot_range is None


def test_a_long_span_does_not_pad_the_short_ones():
    groups = plan([Span(0, 4000, 1), *(Span(slot, 50, 1) for slot in range(1, 8))])
    assert sorted(len(group.spans) for group in groups) == [1, 7]


def test_offsets_cover_the_pass_once():
    spans = [Span(slot, slot * slot * 90, 1 + slot % 3) for slot in range(12)]
    groups = plan(spans)
    assert sorted(span.slot for group in groups for span in group.spans) == list(range(12))
    at = 0
    for group in groups:
        assert group.offset == at
        at += group.tokens
    assert at == sum(span.count for span in spans)
