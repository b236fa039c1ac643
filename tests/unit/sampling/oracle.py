"""The pipeline once more, slowly: plain Python over float64, one token at a time.

`wrong` names a mistake to make on purpose, so that tests can show that they would notice it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from draftproof.sampling.params import SamplingParams

MISTAKES = (
    "repetition skips the prompt",
    "repetition per occurrence",
    "repetition divides negative logits",
    "presence counts the prompt",
    "frequency counts the prompt",
    "presence per occurrence",
    "frequency once",
    "penalties added",
    "bias ignored",
    "temperature before the rest",
    "temperature multiplies",
    "temperature 0 is 1",
    "argmax to the higher id",
    "top-k drops ties",
    "top-k off by one",
    "top-p stops short",
    "top-p takes one more",
    "top-p ties to the higher id",
    "top-p of the unfiltered mass",
    "top-p before temperature",
    "top-p before top-k",
    "min-p absolute",
    "min-p before temperature",
    "not renormalised",
)


def distribution(
    logits: Sequence[float],
    params: SamplingParams,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    wrong: str | None = None,
) -> tuple[list[float], float]:
    """Returns the distribution and how near a filter's threshold came to a token's mass (a near-tie of rounding)."""
    x = _adjusted(list(logits), params, prompt, output, wrong)
    size, tokens = len(x), range(len(x))
    temperature = params.temperature
    if temperature == 0 and wrong == "temperature 0 is 1":
        temperature = 1.0
    if temperature == 0:
        best = max(tokens, key=lambda i: (x[i], i if wrong == "argmax to the higher id" else -i))
        return [float(i == best) for i in tokens], 1.0
    z = [v * temperature if wrong == "temperature multiplies" else v / temperature for v in x]
    kept = set(tokens)
    margin = 1.0

    def top_k() -> None:
        if 0 < params.top_k < size:
            if wrong == "top-k drops ties":
                kept.intersection_update(sorted(tokens, key=lambda i: (-z[i], i))[: params.top_k])
            else:
                kth = sorted(z, reverse=True)[params.top_k - (wrong != "top-k off by one")]
                kept.difference_update([i for i in tokens if z[i] < kth])

    def top_p() -> None:
        nonlocal margin
        if params.top_p >= 1:
            return
        by = x if wrong == "top-p before temperature" else z
        masses = _softmax(by, set(tokens) if wrong == "top-p of the unfiltered mass" else kept)
        sign = -1 if wrong == "top-p ties to the higher id" else 1
        order = sorted(kept, key=lambda i: (-by[i], sign * i))
        running, nucleus = 0.0, set()
        for i in order:
            if running >= params.top_p:
                break
            running += masses[i]
            nucleus.add(i)
            margin = min(margin, abs(running - params.top_p))
        if wrong == "top-p stops short" and len(nucleus) > 1:
            nucleus.discard(order[len(nucleus) - 1])
        if wrong == "top-p takes one more":
            nucleus.update(order[: len(nucleus) + 1])
        kept.intersection_update(nucleus)

    for stage in (top_p, top_k) if wrong == "top-p before top-k" else (top_k, top_p):
        stage()
    if params.min_p > 0:
        masses = _softmax(x if wrong == "min-p before temperature" else z, kept)
        threshold = params.min_p * (1.0 if wrong == "min-p absolute" else max(masses))
        margin = min([margin, *(abs(m / threshold - 1) for m in masses if m < 0.999 * max(masses))])
        best = max(kept, key=lambda i: masses[i])
        kept.intersection_update({best, *(i for i in kept if masses[i] >= threshold * (1 - 1e-12))})
    return _softmax(z, set(tokens) if wrong == "not renormalised" else kept, kept), margin


def _softmax(z: Sequence[float], over: set[int], shown: set[int] | None = None) -> list[float]:
    top = max(z[i] for i in over)
    weights = [math.exp(v - top) if i in over else 0.0 for i, v in enumerate(z)]
    total = math.fsum(weights)
    return [w / total if shown is None or i in shown else 0.0 for i, w in enumerate(weights)]


def _adjusted(
    x: list[float], p: SamplingParams, prompt: Sequence[int], output: Sequence[int], wrong: str | None
) -> list[float]:
    if wrong == "temperature before the rest" and p.temperature > 0:
        x = [v / p.temperature for v in x]
    for token in range(len(x)):
        in_prompt, in_output = prompt.count(token), output.count(token)
        seen = in_output if wrong == "repetition skips the prompt" else in_prompt + in_output
        for _ in range(seen if wrong == "repetition per occurrence" else min(seen, 1)):
            if x[token] < 0 and wrong != "repetition divides negative logits":
                x[token] *= p.repetition_penalty
            else:
                x[token] /= p.repetition_penalty
        present = in_output + (in_prompt if wrong == "presence counts the prompt" else 0)
        often = in_output + (in_prompt if wrong == "frequency counts the prompt" else 0)
        sign = -1 if wrong == "penalties added" else 1
        x[token] -= sign * p.presence_penalty * (present if wrong == "presence per occurrence" else min(present, 1))
        x[token] -= sign * p.frequency_penalty * (min(often, 1) if wrong == "frequency once" else often)
        x[token] += 0.0 if wrong == "bias ignored" else p.logit_bias.get(token, 0.0)
    if wrong == "temperature before the rest" and p.temperature > 0:
        x = [v * p.temperature for v in x]
    return x
