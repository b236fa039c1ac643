"""Streamed text equals text decoded at once, whatever the tokenizer and wherever characters are split."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from draftproof.engine.text import TextStep, TextStream
from draftproof.engine.tokenizer import HfTokenizer

HARD = [
    "plain text, with  two spaces",
    "é à ü ñ",
    "日本語の文章。汉字",
    "🙂🚀",
    "👩‍👩‍👧‍👦 family",
    "👍🏽 🇫🇷",
    "e\u0301 combining",
    "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}",
    "\u200d\u200d",
    "नमस्ते",
]
PIECES = ["hello", " wor", "ld", "Ġ", "日本", "é", "🙂 ", "  ", "'s"]


def byte_level() -> HfTokenizer:
    """256 byte tokens and two special ones: every character beyond ASCII is split at every byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({symbol: i for i, symbol in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    return HfTokenizer(PreTrainedTokenizerFast(tokenizer_object=tokenizer), frozenset({257}))


def byte_fallback() -> HfTokenizer:
    """SentencePiece's way: words with ▁, single bytes as <0xNN>, a leading space that is taken off."""
    words = ["<unk>", "<s>", "▁", "▁hello", "▁wor", "ld", "▁▁", "日", "▁é", "!"]
    entries = [*words, *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer = Tokenizer(
        models.BPE({entry: i for i, entry in enumerate(entries)}, [], unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    return HfTokenizer(PreTrainedTokenizerFast(tokenizer_object=tokenizer), frozenset())


BYTES, FALLBACK = byte_level(), byte_fallback()
TOKENIZERS = {"byte-level": BYTES, "byte-fallback": FALLBACK}


def stream(tokenizer: HfTokenizer, ids: list[int], stop: tuple[str, ...] = ()) -> list[str]:
    text = TextStream(tokenizer, stop)
    return [*(text.push(token_id).text for token_id in ids), text.flush()]


@pytest.mark.parametrize("text", HARD)
@pytest.mark.parametrize("name", TOKENIZERS)
def test_hard_characters(text, name):
    tokenizer = TOKENIZERS[name]
    if name == "byte-level":
        ids = tokenizer.encode(text)
    else:
        ids = [tokenizer._tokenizer.convert_tokens_to_ids(f"<0x{byte:02X}>") for byte in text.encode()]
    parts = stream(tokenizer, ids)
    assert "".join(parts) == tokenizer.decode(ids) == text


@pytest.mark.parametrize("text", [text for text in HARD if "\N{REPLACEMENT CHARACTER}" not in text])
def test_no_part_ends_inside_a_character(text):
    for part in stream(BYTES, BYTES.encode(text)):
        assert "\N{REPLACEMENT CHARACTER}" not in part


def test_characters_arrive_with_their_last_byte():
    text, ids = TextStream(BYTES), BYTES.encode("a🙂b")
    assert [text.push(token_id).text for token_id in ids] == ["a", "", "", "", "🙂", "b"]


@given(st.lists(st.integers(0, 257), max_size=40))
def test_any_ids_byte_level(ids):
    assert "".join(stream(BYTES, ids)) == BYTES.decode(ids)


@given(st.lists(st.one_of(st.integers(0, 12), st.integers(0, 265), st.sampled_from([236, 237, 169, 205])), max_size=30))
def test_any_ids_byte_fallback(ids):
    assert "".join(stream(FALLBACK, ids)) == FALLBACK.decode(ids)


@given(st.lists(st.sampled_from([*PIECES, *HARD]), max_size=6).map("".join), st.lists(st.integers(0, 60), max_size=5))
def test_special_tokens_anywhere_leave_no_trace(text, places):
    ids = BYTES.encode(text)
    for place in places:
        ids.insert(min(place, len(ids)), 256)
    assert "".join(stream(BYTES, ids)) == text


def test_incomplete_end_is_flushed_as_replacement():
    ids = BYTES.encode("a🙂")[:-1]
    assert stream(BYTES, ids) == ["a", "", "", "", "\N{REPLACEMENT CHARACTER}"]
    assert BYTES.decode(ids) == "a\N{REPLACEMENT CHARACTER}"


def test_stop_string_is_cut_and_its_beginning_held_back():
    text = TextStream(BYTES, ["\n\n", "END"])
    steps = [text.push(token_id) for token_id in BYTES.encode("aE\nbEND more")]
    assert [step.text for step in steps] == ["a", "", "E", "\nb", "", "", "", "", "", "", "", ""]
    assert [step.stopped for step in steps].index(True) == 6
    assert all(step == TextStep("", True) for step in steps[7:])
    assert text.flush() == ""
    assert text.stopped


def test_held_back_text_comes_with_the_flush():
    assert stream(BYTES, BYTES.encode("abEN"), ("END",)) == ["a", "b", "", "", "EN"]


def test_first_completed_stop_wins():
    assert "".join(stream(BYTES, BYTES.encode("xabcdy"), ("abcd", "bc"))) == "xa"
    assert "".join(stream(BYTES, BYTES.encode("xabcdy"), ("bcd", "abcd"))) == "x"


def test_overlapping_start_is_found():
    assert "".join(stream(BYTES, BYTES.encode("aaab"), ("aab",))) == "a"


def test_stop_of_split_characters():
    text = TextStream(BYTES, ["🙂"])
    steps = [text.push(token_id) for token_id in BYTES.encode("é🙂x")]
    assert "".join(step.text for step in steps) == "é"
    assert steps[5].stopped


def test_stop_completed_only_by_the_flush():
    text = TextStream(FALLBACK, ["!"])
    ids = [FALLBACK._tokenizer.convert_tokens_to_ids(token) for token in ("▁hello", "<0x21>")]
    assert [text.push(token_id) for token_id in ids] == [TextStep("hello", False), TextStep("", False)]
    assert text.flush() == ""
    assert text.stopped


@given(st.text("ab!", max_size=30), st.lists(st.text("ab!", min_size=1, max_size=4), max_size=3))
def test_stops_cut_where_a_reader_of_single_characters_would(text, stops):
    expected = text
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            expected = text[: end - max(map(len, found))]
            break
    assert "".join(stream(BYTES, BYTES.encode(text), tuple(stops))) == expected


def test_empty_stop_strings_stop_nothing():
    assert "".join(stream(BYTES, BYTES.encode("ab"), ("",))) == "ab"
