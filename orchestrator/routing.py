"""Which draft and which target serve a request: pure policy."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from draftproof.v1 import generation_pb2
from orchestrator.workers import Fleet, Role, Worker

_CHUNK = 256


@dataclass(frozen=True, slots=True)
class Route:
    """A draft, or None for target-only, and a target."""

    draft: Worker | None
    target: Worker


@dataclass(frozen=True, slots=True)
class Wish:
    """What routing should heed.

    Attributes:
        prefix: chained digests of the prompt's chunks, longest last (see `prefix_digests`).
        gamma: of the request, 0 for target-only, None unset.
        draft_weights: weights that a resumed seeded request should meet again; empty: any.
        avoid: workers that have just failed this request.
        apart: pairs of draft and target that can't reach each other, by name.
    """

    prefix: Sequence[bytes] = ()
    gamma: int | None = None
    draft_weights: bytes = b""
    avoid: frozenset[str] = frozenset()
    apart: frozenset[tuple[str, str]] = frozenset()


class Router:
    """Least outstanding work per slot; a target that has seen the prompt's beginning wins while it is hardly busier.

    Args:
        slack: how much more load per slot a target with the prefix may have.
        remembered: prefixes remembered.
    """

    def __init__(self, slack: float = 0.5, remembered: int = 65_536) -> None:
        self._slack = slack
        self._remembered = remembered
        self._seen: OrderedDict[bytes, str] = OrderedDict()

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

    def _target(self, fleet: Fleet, wish: Wish) -> Worker | None:
        ready = _preferred(fleet.ready(Role.TARGET), wish.avoid)
        if not ready:
            return None
        least = min(ready, key=lambda w: (w.load, w.name))
        for digest in reversed(wish.prefix):
            holder = next((w for w in ready if w.name == self._seen.get(digest)), None)
            if holder is not None and holder.load <= least.load + self._slack:
                return holder
        return least

    def _draft(self, fleet: Fleet, wish: Wish, target: Worker) -> Worker | None:
        fits = [
            w
            for w in fleet.ready(Role.DRAFT)
            if fit(w, target) and w.name not in wish.avoid and (w.name, target.name) not in wish.apart
        ]
        same = [w for w in fits if w.fingerprint.weights_sha256 == wish.draft_weights] if wish.draft_weights else []
        return min(same or fits, key=lambda w: (w.load, w.name), default=None)


def fit(draft: Worker, target: Worker) -> bool:
    """Whether the two may work together (L8)."""
    mine, other = draft.fingerprint, target.fingerprint
    return (mine.tokenizer_sha256, mine.vocab_size, mine.sampling_contract) == (
        other.tokenizer_sha256,
        other.vocab_size,
        other.sampling_contract,
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
        for token in request.token_ids.ids:
            yield token.to_bytes(4, "little")
    else:
        for message in request.chat.messages:
            yield f"\0{message.role}\0{message.content}".encode()


def _preferred(workers: list[Worker], avoid: frozenset[str]) -> list[Worker]:
    """Those that have not just failed; all of them where there are no others."""
    return [w for w in workers if w.name not in avoid] or workers
