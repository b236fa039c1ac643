"""Where an output ends: the ids that stop it, and whether a prefix to go on from has ended already."""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.engine.interface import Tokenizer
from draftproof.engine.text import TextStream
from draftproof.sampling.params import SamplingParams
from draftproof.v1 import verdict_pb2


def stop_ids(params: SamplingParams, tokenizer: Tokenizer) -> frozenset[int]:
    """Ids that end the output: the request's own and, unless ignored, the model's end-of-sequence ids."""
    own = frozenset(params.stop_token_ids)
    return own if params.ignore_eos else own | tokenizer.eos_ids


def ended(
    params: SamplingParams, tokenizer: Tokenizer, prompt_tokens: int, output_ids: Sequence[int], max_context: int
) -> verdict_pb2.FinishReason | None:
    """Why an output is complete as it stands, None where something may follow.

    A server that dies between the last round of a request and its end leaves such a prefix behind.
    """
    if not output_ids:
        return None
    text = TextStream(tokenizer, params.stop) if params.stop else None
    stops = stop_ids(params, tokenizer)
    for token in output_ids:
        if token in stops or (text is not None and text.push(token).stopped):
            return verdict_pb2.FINISH_REASON_STOP
    if len(output_ids) == params.max_tokens or prompt_tokens + len(output_ids) == max_context:
        if text is not None:
            # text held back until now may hold a stop string; it wins over the length
            text.flush()
            if text.stopped:
                return verdict_pb2.FINISH_REASON_STOP
        return verdict_pb2.FINISH_REASON_LENGTH
    return None
