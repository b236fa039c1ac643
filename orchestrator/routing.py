"""Which draft and which target serve a request: pure policy."""

from __future__ import annotations

import hashlib
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from draftproof.v1 import generation_pb2
from orchestrator.workers import Fleet, Role, Worker

_CHUNK = 128
"""Bytes of the prompt that share a digest: 32 token ids, or some 30 tokens of text."""


@dataclass(frozen=True, slots=True)
class Route:
    """A draft, or None for target-only, and a target."""

    draft: Worker | None
    target: Worker

    @property
    def workers(self) -> list[Worker]:
        """Both, or the target alone."""
        return [self.target] if self.draft is None else [self.draft, self.target]


@dataclass(frozen=True, slots=True)
class Wish:
    """What routing should heed.

    Attributes:
        prefix: chained digests of the prompt's chunks, longest last (see `prefix_digests`).
        gamma: of the request, 0 for target-only, None unset.
        draft_weights: weights that a resumed request should meet again where it can; empty: any.
        target_weights: weights that a resumed request must meet again, or its law would change; empty: any.
        avoid: lives of workers that have just failed this request (see `Worker.life`).
    """

    prefix: Sequence[bytes] = ()
    gamma: int | None = None
    draft_weights: bytes = b""
    target_weights: bytes = b""
    avoid: frozenset[int] = frozenset()


class Router:
    """Least outstanding work per slot; a target that has seen the prompt's beginning wins while it is hardly busier.

    Args:
        slack: how much more load per slot a target with the prefix may have.
        remembered: prefixes remembered.
        apart: seconds for which a draft isn't sent to a target that it has just failed to reach.
        clock: seconds.
    """

    def __init__(
        self,
        slack: float = 0.5,
        remembered: int = 65_536,
        apart: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._slack = slack
        self._remembered = remembered
        self._apart_seconds = apart
        self._clock = clock
        self._seen: OrderedDict[bytes, str] = OrderedDict()
        self._apart: dict[tuple[int, int], float] = {}

    def choose(self, fleet: Fleet, wish: Wish) -> Route | None:
        """A route, or None where no target is ready."""
        target = self._target(fleet, wish)
        if target is None:
            return None
        draft = None if wish.gamma == 0 else self._draft(fleet, wish, target)
        return Route(draft, target)

    def served(self, wish: Wish, target: Worker) -> None:
        """Remembers that the target holds the prompt's KV."""
        for digest in wish.prefix:
            self._seen[digest] = target.name
            self._seen.move_to_end(digest)
        while len(self._seen) > self._remembered:
            self._seen.popitem(last=False)

    def parted(self, draft: Worker, target: Worker) -> None:
        """Takes note that the draft can't reach the target: whether anybody can, the probe will say."""
        now = self._clock()
        self._apart = {pair: until for pair, until in self._apart.items() if until > now}
        self._apart[draft.life, target.life] = now + self._apart_seconds

    def _target(self, fleet: Fleet, wish: Wish) -> Worker | None:
        ready = [w for w in fleet.ready(Role.TARGET) if not wish.target_weights or w.weights == wish.target_weights]
        # those that have just failed only where there are no others
        ready = [w for w in ready if w.life not in wish.avoid] or ready
        ready = [w for w in ready if w.max_gamma >= (wish.gamma or 0)] or ready
        if not ready:
            return None
        least = min(ready, key=lambda w: (w.load, w.name))
        for digest in reversed(wish.prefix):
            name = self._seen.get(digest)
            holder = next((w for w in ready if w.name == name), None)
            if holder is not None and holder.load <= least.load + self._slack:
                return holder
        return least

    def _draft(self, fleet: Fleet, wish: Wish, target: Worker) -> Worker | None:
        now = self._clock()
        fits = [
            w
            for w in fleet.ready(Role.DRAFT)
            if fit(w, target) and w.life not in wish.avoid and self._apart.get((w.life, target.life), 0.0) <= now
        ]
        same = [w for w in fits if w.weights == wish.draft_weights] if wish.draft_weights else []
        return min(same or fits, key=lambda w: (w.load, w.name), default=None)


def fit(draft: Worker, target: Worker) -> bool:
    """Whether the two may work together (L8)."""
    return not misfit(draft, target)


def misfit(draft: Worker, target: Worker) -> str:
    """Why the two may not work together, as a sentence; empty where they may."""
    mine, other = draft.fingerprint, target.fingerprint
    if mine.sampling_contract != other.sampling_contract:
        return f"{draft.name} and {target.name} run releases that sample differently; run the same release on both"
    if mine.vocab_size != other.vocab_size:
        difference = f"{mine.vocab_size} tokens, {other.vocab_size} there"
    elif mine.tokenizer_sha256 != other.tokenizer_sha256:
        difference = f"other tokens under the same {mine.vocab_size} ids"
    else:
        return ""
    return (
        f"{draft.name} ({mine.model}) has another tokenizer than {target.name} ({other.model}): {difference};"
        " give a draft model of the target's own family"
    )


def prefix_digests(request: generation_pb2.GenerateRequest) -> list[bytes]:
    """Chained digests of the prompt in chunks: equal beginnings have equal first digests."""
    data = b"".join(_parts(request))
    digests, chain = [], b""
    for start in range(0, len(data) - _CHUNK + 1, _CHUNK):
        chain = hashlib.blake2b(chain + data[start : start + _CHUNK], digest_size=16).digest()
        digests.append(chain)
    return digests


def _parts(request: generation_pb2.GenerateRequest) -> Iterable[bytes]:
    form = request.WhichOneof("prompt")
    if form == "text":
        yield request.text.encode()
    elif form == "token_ids":
        yield array("I", request.token_ids.ids).tobytes()
    else:
        for message in request.chat.messages:
            yield f"\0{message.role}\0{message.content}".encode()
