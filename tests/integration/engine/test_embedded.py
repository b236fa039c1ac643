"""The embedded model itself; `make model` has prepared it."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from draftproof.engine import embedded
from draftproof.engine.config import EMBEDDED_DRAFT, ModelConfig
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


def test_the_draft_that_comes_with_it_writes_like_it(engine, tokenizer):
    """Far from the figures of docs/distill.md, and farther from what layers without their training reach."""
    assert sum(file.stat().st_size for file in embedded.DRAFT.iterdir()) <= 20_000_000
    draft = load_engine(ModelConfig(model=EMBEDDED_DRAFT, device="cpu", slots=1, max_context=512))
    assert draft.vocab_size == engine.vocab_size
    prompt = tokenizer.render_chat([{"role": "user", "content": "How does a refrigerator keep food cold?"}])
    ids, logits = list(prompt), engine.forward([Row(0, 0, prompt, 1)])
    p = []
    for _ in range(80):
        p.append(logits[-1].softmax(-1))
        ids.append(int(p[-1].argmax()))
        logits = engine.forward([Row(0, engine.length(0), ids[-1:], 1)])
    q = draft.forward([Row(0, 0, ids[:-1], 80)]).softmax(-1)
    overlap = torch.minimum(torch.stack(p), q).sum(-1).mean()
    agreement = (q.argmax(-1) == torch.tensor(ids[-80:])).double().mean()
    assert overlap > 0.3
    assert agreement > 0.3
