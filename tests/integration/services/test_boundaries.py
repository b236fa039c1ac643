"""Where an output ends, and that text, counts and log-probabilities are those of exactly what was emitted."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

from draftproof import Completion
from draftproof.client import Chunk, TokenSource
from draftproof.sampling.params import SamplingParams
from draftproof.sampling.pipeline import distribution
from draftproof.testing.table import ByteTokenizer
from tests.integration.services.harness import (
    EOS,
    LETTERS,
    Kit,
    ScriptEngine,
    Stack,
    letters,
    model_drafter,
    table,
)

GAMMA = 4
OPTIONS = {"gamma": GAMMA, "seed": 3, "max_tokens": 40}


async def run(stack: Stack, prompt: str = "hello", **options: object) -> tuple[list[Chunk], Completion]:
    async with stack.client.stream(prompt, **{**OPTIONS, **options}) as stream:  # type: ignore[arg-type]
        chunks = [chunk async for chunk in stream]
        return chunks, stream.completion


def check_counts(chunks: Sequence[Chunk], completion: Completion) -> None:
    """What is counted is what was streamed."""
    streamed = [token for chunk in chunks for token in chunk.tokens]
    stats = completion.stats
    assert list(completion.tokens) == streamed
    assert completion.text == "".join(token.text for token in streamed)
    assert completion.usage.completion_tokens == len(streamed)
    assert stats.rounds == len(chunks)
    assert stats.drafted == sum(chunk.examined for chunk in chunks)
    sources = [token.source for token in streamed]
    assert stats.accepted == sources.count(TokenSource.ACCEPTED) == sum(chunk.accepted for chunk in chunks)
    assert stats.resampled == sources.count(TokenSource.RESAMPLED)
    assert stats.bonus == sources.count(TokenSource.BONUS)
    assert stats.target_only == sources.count(TokenSource.TARGET)
    assert stats.committed == len(streamed)
    for position, accepted in enumerate(stats.accepted_per_position):
        assert accepted == sum(chunk.accepted > position for chunk in chunks)
        assert stats.drafted_per_position[position] == sum(chunk.examined > position for chunk in chunks)


def first_offsets(chunks: Sequence[Chunk]) -> dict[int, tuple[int, int]]:
    """Token id -> (index in the output, offset in its block) of its first appearance."""
    found: dict[int, tuple[int, int]] = {}
    index = 0
    for chunk in chunks:
        for offset, token in enumerate(chunk.tokens):
            found.setdefault(token.id, (index, offset))
            index += 1
    return found


@pytest.mark.parametrize("kind", ["stop id", "stop string", "eos"])
async def test_nothing_follows_a_stop_at_any_offset_of_a_block(kit: Kit, kind: str) -> None:
    tokenizer = letters()
    stack = await kit.stack(drafter=lambda: model_drafter(table(noise=0.02)), tokenizer=tokenizer)
    offsets = set()
    for seed in range(2):
        before = stack.target.count("committed_tokens_total", source="accepted")
        chunks, whole = await run(stack, ignore_eos=True, seed=seed)
        check_counts(chunks, whole)
        assert stack.target.count("committed_tokens_total", source="accepted") == before + whole.stats.accepted
        assert whole.finish_reason == "length"
        for token_id, (index, offset) in first_offsets(chunks).items():
            if index > 11 or token_id == EOS:
                continue
            letter = chr(ord("a") + token_id)
            options: dict[str, object] = {"seed": seed, "ignore_eos": True}
            if kind == "stop id":
                options["stop_token_ids"] = [token_id]
            elif kind == "stop string":
                options["stop"] = [letter]
            else:
                tokenizer.eos_ids = frozenset({token_id})
                options["ignore_eos"] = False
            drafted = stack.target.count("spec_decode_num_draft_tokens_total")
            cut_chunks, cut = await run(stack, **options)
            check_counts(cut_chunks, cut)
            assert cut.token_ids == whole.token_ids[: index + 1], (seed, index)
            assert cut.finish_reason == "stop"
            kept = index if kind == "stop string" else index + 1
            assert cut.text == tokenizer.decode(whole.token_ids[:kept])
            assert stack.target.count("spec_decode_num_draft_tokens_total") == drafted + cut.stats.drafted
            offsets.add(offset)
    assert offsets == set(range(GAMMA + 1))


async def test_a_stop_string_over_several_blocks(kit: Kit) -> None:
    stack = await kit.stack(drafter=lambda: model_drafter(table(noise=0.02)))
    _, whole = await run(stack, ignore_eos=True)
    assert len(whole.text) > 15
    for start in range(8):
        stop = whole.text[start : start + 7]
        chunks, cut = await run(stack, ignore_eos=True, stop=["zzzz", stop])
        check_counts(chunks, cut)
        at = whole.text.index(stop)
        assert cut.text == whole.text[:at]
        assert cut.token_ids == whole.token_ids[: len(cut.token_ids)]
        assert letters().decode(cut.token_ids) == whole.text[: at + len(stop)]
        assert cut.finish_reason == "stop"


@pytest.mark.parametrize("max_tokens", range(1, 12))
async def test_the_length_limit_cuts_at_every_offset(kit: Kit, max_tokens: int) -> None:
    stack = await kit.stack(drafter=lambda: model_drafter(table(noise=0.02)))
    _, whole = await run(stack, temperature=0.0, ignore_eos=True)
    chunks, cut = await run(stack, temperature=0.0, ignore_eos=True, max_tokens=max_tokens)
    check_counts(chunks, cut)
    assert cut.token_ids == whole.token_ids[:max_tokens]
    assert cut.finish_reason == "length"
    chunks, sampled = await run(stack, ignore_eos=True, max_tokens=max_tokens)
    check_counts(chunks, sampled)
    assert sampled.usage.completion_tokens == max_tokens


async def test_a_stop_inside_the_budget_wins_over_the_length(kit: Kit) -> None:
    stack = await kit.stack()
    _, whole = await run(stack, temperature=0.0, ignore_eos=True)
    for token_id, index in {t: whole.token_ids.index(t) for t in set(whole.token_ids)}.items():
        _, at = await run(stack, temperature=0.0, ignore_eos=True, stop_token_ids=[token_id], max_tokens=index + 1)
        assert at.finish_reason == "stop"
        assert len(at.tokens) == index + 1
        if index:
            _, short = await run(stack, temperature=0.0, ignore_eos=True, stop_token_ids=[token_id], max_tokens=index)
            assert short.finish_reason == "length"


@pytest.mark.parametrize("offset", range(GAMMA))
async def test_an_end_that_the_draft_proposes_and_the_target_rejects_stops_nothing(kit: Kit, offset: int) -> None:
    script = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    proposed = list(script)
    proposed[offset] = EOS
    stack = await kit.stack(
        engine=ScriptEngine(script, prompt=5), drafter=lambda: model_drafter(ScriptEngine(proposed, prompt=5))
    )
    chunks, completion = await run(stack, max_tokens=len(script), trace=1)
    check_counts(chunks, completion)
    assert completion.token_ids == tuple(script)
    assert completion.finish_reason == "length"
    rejected = completion.tokens[offset]
    assert rejected.source == TokenSource.RESAMPLED
    assert rejected.trace is not None
    assert rejected.trace.proposed_id == EOS
    assert not rejected.trace.accepted


@pytest.mark.parametrize("gamma", [0, 1, 2, 4])
async def test_characters_split_across_blocks_come_whole(kit: Kit, gamma: int) -> None:
    text = "日本語🎉é 👩‍👩‍👧 한국 ok"
    script = [*text.encode(), 256]
    tokenizer = ByteTokenizer(257)
    wrong = list(script)
    wrong[5::7] = [ord("x")] * len(wrong[5::7])
    stack = await kit.stack(
        engine=ScriptEngine(script, prompt=5, vocab_size=257),
        drafter=lambda: model_drafter(ScriptEngine(wrong, prompt=5, vocab_size=257)),
        tokenizer=tokenizer,
    )
    chunks, completion = await run(stack, gamma=gamma, max_tokens=100)
    check_counts(chunks, completion)
    assert completion.text == text
    assert completion.finish_reason == "stop"
    assert all("\N{REPLACEMENT CHARACTER}" not in token.text for token in completion.tokens)
    for length in (1, 2, 4, 5, 10, 11):
        _, cut = await run(stack, gamma=gamma, max_tokens=length)
        assert cut.text == tokenizer.decode(script[:length])


@pytest.mark.parametrize("gamma", [0, 4])
async def test_reading_changes_no_token(kit: Kit, gamma: int) -> None:
    stack = await kit.stack()
    settings = {"ignore_eos": True, "gamma": gamma, "temperature": 1.3, "top_p": 0.9, "presence_penalty": 0.5}
    _, plain = await run(stack, **settings)
    for reading in ({"logprobs": 3}, {"trace": 2}, {"trace": "full", "logprobs": 0}):
        chunks, read = await run(stack, **settings, **reading)
        check_counts(chunks, read)
        assert read.token_ids == plain.token_ids
        assert [token.source for token in read.tokens] == [token.source for token in plain.tokens]
        assert read.stats.drafted == plain.stats.drafted


async def test_log_probabilities_equal_a_recompute(kit: Kit) -> None:
    stack = await kit.stack()
    options: dict[str, object] = {"logprobs": 3, "trace": "full", "temperature": 0.7, "top_k": 9}
    _, completion = await run(stack, rule="token", ignore_eos=True, **options)
    params = SamplingParams(temperature=0.7, top_k=9)
    context = list(completion.prompt_ids)
    engine = table()
    sources = set()
    for token in completion.tokens:
        logits = engine.logits_after([context])[0]
        p = distribution(logits, params)
        raw = torch.log_softmax(logits.double(), -1)
        assert token.logprobs is not None
        assert token.logprobs.logprob == pytest.approx(math.log(float(p[token.id])), abs=1e-5)
        assert token.logprobs.raw_logprob == pytest.approx(float(raw[token.id]), abs=1e-5)
        assert [top.id for top in token.logprobs.top] == p.argsort(descending=True, stable=True)[:3].tolist()
        for top in token.logprobs.top:
            assert top.logprob == pytest.approx(math.log(float(p[top.id])), abs=1e-5)
            assert top.raw_logprob == pytest.approx(float(raw[top.id]), abs=1e-5)
        trace = token.trace
        assert trace is not None
        assert trace.position == len(context)
        assert trace.p is not None
        torch.testing.assert_close(torch.tensor(trace.p.masses), p)
        if trace.proposed_id is not None:
            assert trace.accepted == (trace.accept_uniform * trace.q_proposed < trace.p_proposed)
            assert trace.q is not None
            assert sum(trace.q.masses) == pytest.approx(1.0, abs=1e-5)
        context.append(token.id)
        sources.add(token.source)
    assert {TokenSource.ACCEPTED, TokenSource.RESAMPLED, TokenSource.BONUS} <= sources
    assert len(p) == LETTERS


async def test_an_output_that_fills_the_context(kit: Kit) -> None:
    stack = await kit.stack(engine=table(max_context=24))
    chunks, completion = await run(stack, ignore_eos=True, max_tokens=None)
    check_counts(chunks, completion)
    assert completion.finish_reason == "length"
    assert completion.usage.prompt_tokens + completion.usage.completion_tokens == 24
