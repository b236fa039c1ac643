"""Many streams at once, each checked against what it says of itself."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from draftproof import AsyncClient, Completion
from draftproof.client import NO_RETRIES

GAMMA = 3
KINDS = ("greedy", "seeded", "unseeded")
_NOTE = re.compile(r"^went on after (\d+) tokens \((\w+)\)")
_PATIENCE = 120.0


class BrokenStream(Exception):
    """A stream is not what it should be."""


@dataclass(frozen=True, slots=True)
class Stream:
    """One finished stream.

    Attributes:
        arrivals: when chunks came, monotonic seconds, and how many tokens had come by then.
    """

    completion: Completion
    arrivals: list[tuple[float, int]]

    def fallbacks(self) -> Iterator[tuple[float, float, str]]:
        """Last arrival before each fallback, first one after it, and its reason."""
        seen = set()
        for note in self.completion.notes:
            found = _NOTE.match(note)
            if found is None or found[1] in seen:
                continue  # several attempts at the same place are one interruption
            seen.add(found[1])
            for (before, tokens), (after, _) in zip(self.arrivals, self.arrivals[1:], strict=False):
                if tokens == int(found[1]):
                    yield before, after, found[2]


def requests(count: int, tokens: int) -> list[dict[str, Any]]:
    """Greedy, seeded and unseeded requests by turns, each with another prompt."""
    settings: dict[str, dict[str, Any]] = {
        "greedy": {"temperature": 0.0},
        "seeded": {"gamma": GAMMA},
        "unseeded": {},
    }
    found = []
    for i in range(count):
        kind = KINDS[i % len(KINDS)]
        prompt = f"{chr(97 + i % 26)}hello{chr(97 + i // 26)}"
        more = {"seed": i} if kind == "seeded" else {}
        found.append({"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, **settings[kind], **more})
    return found


class Load:
    """All streams at once, again and again.

    Attributes:
        committed: tokens that have come in this turn.
    """

    def __init__(self, address: str, wanted: list[dict[str, Any]]) -> None:
        self._client = AsyncClient(address, retries=NO_RETRIES, timeout=_PATIENCE)
        self._wanted = wanted
        self._mark, self._reached = 0.0, asyncio.Event()
        self.committed = 0

    @property
    def total(self) -> int:
        """Tokens of a turn."""
        return sum(request["max_tokens"] for request in self._wanted)

    async def turn(self) -> list[Stream]:
        """Streams every request to its end."""
        self.committed = 0
        return await asyncio.gather(*(self._stream(request) for request in self._wanted))

    async def until(self, share: float) -> None:
        """Returns once that share of the turn's tokens has come."""
        self._mark, self._reached = share * self.total, asyncio.Event()
        await self._reached.wait()

    async def close(self) -> None:
        """Closes the client."""
        await self._client.aclose()

    async def _stream(self, request: dict[str, Any]) -> Stream:
        arrivals, ids, text = [], [], ""
        async with self._client.stream(**request) as stream:
            async for chunk in stream:
                self.committed += len(chunk.tokens)
                if self.committed >= self._mark:
                    self._reached.set()
                ids += [token.id for token in chunk.tokens]
                text += "".join(token.text for token in chunk.tokens)
                arrivals.append((time.monotonic(), len(ids)))
        done = stream.completion
        if not len(ids) == done.usage.completion_tokens == done.stats.committed == request["max_tokens"]:
            raise BrokenStream(f"{len(ids)} tokens came, usage and stats say {done.usage}, {done.stats}")
        if tuple(ids) != tuple(done.token_ids) or text != done.text or not done.lossless:
            raise BrokenStream(f"what was streamed is not what the stream says it was: {text!r}, {done}")
        return Stream(done, arrivals)
