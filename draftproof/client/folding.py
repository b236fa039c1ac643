"""Chunks and their end, folded into one Completion, over as many servers as it took."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import zip_longest

from draftproof.client import convert
from draftproof.client.types import Chunk, Completion, Start, Stats, Token, TokenSource, Usage
from draftproof.errors import DraftproofError
from draftproof.v1 import generation_pb2, verdict_pb2


class Folding:
    """Collects what was streamed. A server that is lost takes its statistics along, so rounds are counted here too."""

    def __init__(self, clock: Callable[[], float], *, seeded: bool) -> None:
        self._clock = clock
        self._seeded = seeded
        self._begin = clock()
        self._first_token: float | None = None
        self._tokens: list[Token] = []
        self._lost_rounds: list[Chunk] = []
        self._rounds: list[Chunk] = []
        self._interruptions = 0
        self._notes: list[str] = []
        self._lossless = True

    @property
    def token_ids(self) -> list[int]:
        """Ids of all tokens so far."""
        return [token.id for token in self._tokens]

    def add(self, chunk: Chunk) -> None:
        """Takes one round."""
        if self._first_token is None and chunk.tokens:
            self._first_token = self._clock() - self._begin
        if self._tokens and chunk.tokens:
            before, now = self._tokens[-1].weights_version, chunk.tokens[0].weights_version
            if before != now:
                self._notes.append(f"weights version {before} became {now} after {len(self._tokens)} tokens")
        self._tokens += chunk.tokens
        self._lossless = self._lossless and chunk.lossless
        self._rounds.append(chunk)

    def interrupted(self, error: DraftproofError) -> None:
        """The server of the rounds so far won't report on them any more."""
        if not self._rounds and self._interruptions:
            return
        self._interruptions += 1
        self._lost_rounds += self._rounds
        self._rounds = []
        self._notes.append(f"resumed after {len(self._tokens)} tokens: {error.message}")

    def resumed(self, first: Start, now: Start) -> None:
        """Notes what changed under the request."""
        changed = [
            f"{name} {before!r} became {after!r}"
            for name, before, after in (
                ("drafter", first.drafter, now.drafter),
                ("gamma", first.gamma, now.gamma),
                ("target model", first.target_model, now.target_model),
            )
            if before != after
        ]
        if not changed:
            return
        note = "; ".join(changed)
        if self._seeded:
            note += "; the text may differ from an uninterrupted run of this seed"
        if note not in self._notes:
            self._notes.append(note)

    def finish(self, start: Start, finished: generation_pb2.Finished) -> Completion:
        """The result."""
        return Completion(
            text="".join(token.text for token in self._tokens),
            tokens=tuple(self._tokens),
            finish_reason=convert.finish_reason(finished.finish_reason),
            usage=Usage(prompt_tokens=len(start.prompt_ids), completion_tokens=len(self._tokens)),
            stats=self._stats(finished.stats),
            # a server that was lost, or that only went on, can't speak for the rounds before
            lossless=finished.lossless and self._lossless,
            notes=(*self._notes, *finished.notes),
            prompt_ids=start.prompt_ids,
            request_key=start.request_key,
            gamma=start.gamma,
            target_model=start.target_model,
            drafter=start.drafter,
            weights_version=start.weights_version,
            rule=start.rule,
        )

    def _stats(self, pb: verdict_pb2.SpeculationStats) -> Stats:
        stats = Stats(
            rounds=pb.rounds,
            drafted=pb.drafted,
            accepted=pb.accepted,
            drafted_per_position=tuple(pb.drafted_per_position),
            accepted_per_position=tuple(pb.accepted_per_position),
            resampled=pb.resampled,
            bonus=pb.bonus,
            target_only=pb.target_only,
            expected_accepted=pb.expected_accepted,
            refused=pb.refused,
            proposal_bytes=pb.proposal_bytes,
            time=convert.time_split(pb.time),
            committed=len(self._tokens),
        )
        return self._with_lost_rounds(stats) if self._interruptions else stats

    def _with_lost_rounds(self, last: Stats) -> Stats:
        lost = self._lost_rounds
        sources = [token.source for chunk in lost for token in chunk.tokens]
        total = self._clock() - self._begin
        return dataclasses.replace(
            last,
            rounds=last.rounds + len(lost),
            drafted=last.drafted + sum(chunk.examined for chunk in lost),
            accepted=last.accepted + sum(chunk.accepted for chunk in lost),
            drafted_per_position=_add_counts(
                last.drafted_per_position, [chunk.widths or (1,) * chunk.examined for chunk in lost]
            ),
            accepted_per_position=_add_counts(last.accepted_per_position, [(1,) * chunk.accepted for chunk in lost]),
            resampled=last.resampled + sources.count(TokenSource.RESAMPLED),
            bonus=last.bonus + sources.count(TokenSource.BONUS),
            target_only=last.target_only + sources.count(TokenSource.TARGET),
            expected_accepted=None if lost else last.expected_accepted,
            time=dataclasses.replace(last.time, total=total, first_token=self._first_token or total),
        )


def _add_counts(counts: tuple[int, ...], rounds: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Adds up counts by offset."""
    return tuple(sum(column) for column in zip_longest(counts, *rounds, fillvalue=0))
