"""What the SDK hands out of generations: plain frozen objects, no protobuf, no gRPC."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from draftproof.sampling.params import Rule

FinishReason = Literal["stop", "length"]
"""`stop`: end of sequence, stop id or stop string. `length`: max_tokens or the context limit."""


class TokenSource(StrEnum):
    """Where a committed token came from."""

    ACCEPTED = "accepted"
    """Proposed by the draft, accepted by the target."""
    RESAMPLED = "resampled"
    """Drawn from (p - q)+ / Z after a rejection."""
    BONUS = "bonus"
    """Drawn from p after every proposal of the block was accepted."""
    TARGET = "target"
    """Drawn from p in a round without proposals."""


@dataclass(frozen=True, slots=True)
class TopLogprob:
    """One of the likeliest tokens at a position, with both columns of `Logprobs`."""

    id: int
    logprob: float
    raw_logprob: float


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log-probabilities of a token under the target, natural log.

    Attributes:
        logprob: under the distribution it was drawn from, after temperature, filters and penalties.
        raw_logprob: under the model's unmodified logits.
        top: the likeliest tokens of the processed distribution, descending.
    """

    logprob: float
    raw_logprob: float
    top: tuple[TopLogprob, ...]


@dataclass(frozen=True, slots=True)
class Masses:
    """A distribution or its head.

    Attributes:
        ids: token ids in descending order of mass; None where `masses` holds all V in id order.
        masses: one per id.
    """

    ids: Sequence[int] | None
    masses: Sequence[float]

    def of(self, token_id: int) -> float | None:
        """Mass of a token, None where it isn't listed."""
        if self.ids is None:
            return self.masses[token_id] if 0 <= token_id < len(self.masses) else None
        return next((mass for i, mass in zip(self.ids, self.masses, strict=True) if i == token_id), None)


@dataclass(frozen=True, slots=True)
class PositionTrace:
    """p, q, u and verdict at one position.

    Attributes:
        position: tokens from the start of the original prompt.
        block_start: position where the block began.
        proposed_id: the proposal examined here, None at bonus and target positions.
        accepted: whether it stayed: under the token rule iff accept_uniform * q_proposed < p_proposed.
        accept_uniform: u of the acceptance test, in [0, 1).
        accept_probability: what it was compared with: the proposal passed iff accept_uniform is less. Under the block
            rule the longest prefix whose last proposal passes stays.
        draw_uniform: u that drew a resampled, bonus or target token, in [0, 1).
        p_proposed: p of the proposal.
        q_proposed: q of the proposal.
        p: the target's distribution here.
        q: the draft's distribution here, None where nothing was proposed.
    """

    position: int
    block_start: int
    proposed_id: int | None
    accepted: bool
    accept_uniform: float
    accept_probability: float
    draw_uniform: float
    p_proposed: float
    q_proposed: float
    p: Masses | None
    q: Masses | None


@dataclass(frozen=True, slots=True)
class Token:
    """One committed token.

    Attributes:
        text: text that became final with it, never part of a character; may be empty.
        logprobs: set where `logprobs` was asked for.
        trace: set where `trace` was asked for.
        loss: most that the law it was drawn from differs from the target's, in total variation; 0 under a lossless
            rule.
        weights_version: version of the weights that p comes from.
    """

    id: int
    text: str
    source: TokenSource
    logprobs: Logprobs | None = None
    trace: PositionTrace | None = None
    loss: float = 0.0
    weights_version: int = 0


@dataclass(frozen=True, slots=True)
class Start:
    """What was decided before the first token.

    Attributes:
        prompt_ids: ids the output continues.
        request_key: key of all random numbers of the request, 32 bytes.
        gamma: proposals per round.
        drafter: name of the drafter, empty without one.
        weights_version: version of the target's weights, part of the key.
        weights_sha256: tells them from others, 32 bytes.
        rule: how proposals are judged.
    """

    prompt_ids: tuple[int, ...]
    request_key: bytes
    gamma: int
    target_model: str
    drafter: str
    weights_version: int
    rule: Rule = Rule.BLOCK
    weights_sha256: bytes = b""


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one round committed.

    Attributes:
        examined: proposals verified in the round.
        accepted: proposals accepted in the round.
        widths: of a tree, how many of the examined proposals there are at each depth; empty for a chain.
        lossless: False once something has happened that could bend the output law.
    """

    tokens: tuple[Token, ...]
    examined: int
    accepted: int
    lossless: bool = True
    widths: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """Text of the round."""
        return "".join(token.text for token in self.tokens)


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts."""

    prompt_tokens: int
    completion_tokens: int

    @property
    def total_tokens(self) -> int:
        """Prompt and completion."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class TimeSplit:
    """Where the time went, seconds summed over rounds; `forward` and `verify` are shared with batch mates.

    Attributes:
        draft: drafting.
        queue: waiting in the target's queue.
        forward: the target's forward passes.
        verify: acceptance and draws after them.
        wire: round trips less the target's own share.
        total: from the start of the request to its last token.
        first_token: from the start of the request to its first token.
    """

    draft: float = 0.0
    queue: float = 0.0
    forward: float = 0.0
    verify: float = 0.0
    wire: float = 0.0
    total: float = 0.0
    first_token: float = 0.0


@dataclass(frozen=True, slots=True)
class Stats:
    """Speculation over a whole request. Bonus and resampled tokens never count as accepted.

    Attributes:
        rounds: target steps, those without proposals included.
        drafted: proposals verified.
        accepted: proposals accepted and emitted.
        drafted_per_position: proposals at offset i of a block.
        accepted_per_position: of those, accepted.
        resampled, bonus, target_only: tokens by source.
        expected_accepted: sum of min(p, q) over verified positions; None where part of the request went unreported
            because a server was lost.
        refused: positions that were not verified as sent.
        proposal_bytes: bytes of proposals on the wire.
        time: where the time went.
        committed: tokens emitted.
    """

    rounds: int
    drafted: int
    accepted: int
    drafted_per_position: tuple[int, ...]
    accepted_per_position: tuple[int, ...]
    resampled: int
    bonus: int
    target_only: int
    expected_accepted: float | None
    refused: int
    proposal_bytes: int
    time: TimeSplit
    committed: int

    @property
    def acceptance_rate(self) -> float | None:
        """accepted / drafted, None when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def tokens_per_target_step(self) -> float | None:
        """Tokens emitted per target step, None when there was no step."""
        return self.committed / self.rounds if self.rounds else None


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished generation.

    Attributes:
        text: all text, cut before a stop string.
        tokens: all tokens with source and, where asked for, log-probabilities and trace.
        lossless: False if anything happened that could bend the output law, a lossy rule among it.
        notes: sentences on what the caller should know.
        request_key: key of all random numbers of the request, 32 bytes.
        gamma: proposals per round at the start.
        rule: how proposals were judged.
        weights_version: version of the target's weights at the start; each token names its own.
    """

    text: str
    tokens: tuple[Token, ...]
    finish_reason: FinishReason
    usage: Usage
    stats: Stats
    lossless: bool
    notes: tuple[str, ...]
    prompt_ids: tuple[int, ...]
    request_key: bytes
    gamma: int
    target_model: str
    drafter: str
    weights_version: int
    rule: Rule = Rule.BLOCK

    @property
    def loss(self) -> float:
        """Sum of the tokens' losses: in expectation a bound on the total variation between the law of the output and
        the target's. 0 under a lossless rule."""
        return sum(token.loss for token in self.tokens)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Ids of all tokens."""
        return tuple(token.id for token in self.tokens)
