"""The embedded model itself; `make model` has prepared it."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from draftproof.engine import embedded
from draftproof.engine.config import ModelConfig
from draftproof.engine.interface import Row
from draftproof.engine.loading import load_engine, load_tokenizer
from draftproof.engine.text import TextStream

QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(ModelConfig())


@pytest.fixture(scope="module")
def engine(tokenizer):
    return load_engine(ModelConfig(dtype="float32", device="cpu", slots=2, max_context=512), tokenizer=tokenizer)


def test_chat_is_chatml_and_ends_with_im_end(tokenizer):
    assert tokenizer.vocab_size == 49152
    assert [tokenizer.token(token_id) for token_id in tokenizer.eos_ids] == ["<|im_end|>"]
    spelled = "".join(tokenizer.token(token_id) for token_id in tokenizer.render_chat(QUESTION))
    assert spelled == (
        "<|im_start|>systemĊYouĠareĠaĠhelpfulĠAIĠassistantĠnamedĠSmolLM,ĠtrainedĠbyĠHuggingĠFace<|im_end|>Ċ"
        "<|im_start|>userĊWhatĠisĠtheĠcapitalĠofĠFrance?ĠAnswerĠinĠoneĠsentence.<|im_end|>Ċ<|im_start|>assistantĊ"
    )


def test_digits_are_single_tokens(tokenizer):
    """As in the original tokenizer, whose pre-tokenizer splits digits; the GGUF's doesn't, but its merges have none."""
    assert len(tokenizer.encode("1234567890 2024")) == 15


def test_it_answers(engine, tokenizer):
    logits = engine.forward([Row(0, 0, tokenizer.render_chat(QUESTION), 1)])
    text, answer = TextStream(tokenizer), []
    for _ in range(40):
        token_id = int(logits[-1].argmax())
        if token_id in tokenizer.eos_ids:
            break
        answer.append(text.push(token_id).text)
        logits = engine.forward([Row(0, engine.length(0), [token_id], 1)])
    else:
        pytest.fail("the answer doesn't end")
    assert "Paris" in "".join([*answer, text.flush()])


def test_verification_equals_the_plain_forward(engine, tokenizer):
    model = AutoModelForCausalLM.from_pretrained(embedded.prepare(), dtype=torch.float32).eval()
    ids = tokenizer.render_chat(QUESTION)
    assert engine.run.name == "packed"
    engine.forward([Row(1, 0, ids[:-5], 0)])
    got = engine.forward([Row(1, len(ids) - 5, ids[-5:], 5)])
    with torch.inference_mode():
        expected = model(input_ids=torch.tensor([ids])).logits[0, -5:]
    torch.testing.assert_close(got.softmax(-1), expected.softmax(-1), atol=1e-5, rtol=0)
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)
