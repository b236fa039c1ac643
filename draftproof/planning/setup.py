"""What a forecast is made from: costs of the parts, the link between them, acceptance, and how the cluster is run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf, isfinite
from operator import mul

from draftproof.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What the parts take, seconds.

    Attributes:
        draft_step: a step of the draft for one sequence.
        draft_row: more for each further sequence in the step.
        pass_base: a target pass, whatever is in it.
        pass_token: more for each token fed; a round feeds γ + 1.
        overhead: of a round outside both models: event loops, serialisation, verification after the logits.
        shared: whether draft and target run on the same cores, so that either slows the other down.

    Raises:
        ConfigError: a cost is negative or not finite.
    """

    draft_step: float
    pass_base: float
    draft_row: float = 0.0
    pass_token: float = 0.0
    overhead: float = 0.0
    shared: bool = False

    def __post_init__(self) -> None:
        for name in ("draft_step", "draft_row", "pass_base", "pass_token", "overhead"):
            _check(name, getattr(self, name))
        if not self.pass_base + self.pass_token:
            raise ConfigError("pass_base", "a target pass takes time")

    def step(self, rows: float) -> float:
        """Seconds of a draft step over `rows` sequences."""
        return self.draft_step + self.draft_row * max(0.0, rows - 1)

    def verify(self, rows: float, gamma: int) -> float:
        """Seconds of a target pass over `rows` rounds of γ proposals each."""
        return self.pass_base + self.pass_token * rows * (gamma + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Between a draft and a target.

    Attributes:
        rtt: round-trip time, seconds.
        bandwidth: bits a second towards the target, shared by all streams of a draft.

    Raises:
        ConfigError: negative, or no bandwidth.
    """

    rtt: float = 0.0
    bandwidth: float = inf

    def __post_init__(self) -> None:
        _check("rtt", self.rtt)
        if not self.bandwidth > 0:
            raise ConfigError("bandwidth", f"must be positive, got {self.bandwidth}")

    def seconds(self, size: float) -> float:
        """Seconds that `size` bytes occupy it."""
        return 8 * size / self.bandwidth


@dataclass(frozen=True, slots=True)
class Encoding:
    """A form of q on the wire.

    Attributes:
        name: as --q-encoding takes it, with its settings.
        size: bytes a proposal.
        loss: acceptance lost by rounding q to it, absolute.
    """

    name: str
    size: float
    loss: float


DEFAULT_ENCODING = Encoding("lattice, 10 bits", 50.0, 0.0010)

FRAME_BYTES = 120.0
"""Of a block beside its proposals: ids, timings, gRPC and HTTP/2 framing."""


def encodings(vocabulary: int) -> tuple[Encoding, ...]:
    """The encodings to choose from, lattices by `--lattice-bits`.

    Their sizes and losses are those of a weak draft at T = 1, V = 49,152 (`bench.wire`).
    """
    return (
        DEFAULT_ENCODING,
        Encoding("lattice, 12 bits", 76.0, 0.0005),
        Encoding("lattice, 14 bits", 115.0, 0.0003),
        Encoding("dense", 4.0 * vocabulary, 0.0),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A cluster at work.

    Attributes:
        acceptance: chance that a proposal holds, given that all before it did, by offset; the last one goes for all
            after it.
        gamma: proposals a round.
        streams: requests at once.
        targets, drafts: workers of each kind; streams spread evenly.
        encoding: of q.
        ahead: whether a draft goes on drafting while the verdict is out.
        guess: chance that the draft's guess of the bonus token holds; None: like an acceptance.

    Raises:
        ConfigError: a number that can't be.
    """

    costs: Costs
    link: Link
    acceptance: tuple[float, ...]
    gamma: int
    streams: int = 1
    targets: int = 1
    drafts: int = 1
    encoding: Encoding = DEFAULT_ENCODING
    ahead: bool = False
    guess: float | None = None

    def __post_init__(self) -> None:
        if not self.acceptance or not all(0 <= a <= 1 for a in self.acceptance):
            raise ConfigError("acceptance", f"needs values in [0, 1], got {self.acceptance}")
        for name, least in (("gamma", 0), ("streams", 1), ("targets", 1), ("drafts", 1)):
            if getattr(self, name) < least:
                raise ConfigError(name, f"must be at least {least}, got {getattr(self, name)}")

    def accepted(self, offset: int) -> float:
        """Chance that the proposal at an offset holds, given that all before it did; the encoding's loss taken off."""
        return max(0.0, self.acceptance[min(offset, len(self.acceptance) - 1)] - self.encoding.loss)

    def runs(self) -> list[float]:
        """Chances that the first 1, 2, … γ proposals all hold."""
        return list(accumulate((self.accepted(i) for i in range(self.gamma)), mul))

    @property
    def tokens_per_round(self) -> float:
        """E(γ) = 1 + Σ Π a: tokens that a round commits in expectation (Leviathan et al. 2023, equation 1)."""
        return 1 + sum(self.runs())

    @property
    def hit(self) -> float:
        """Chance that a block drafted ahead is the next one: all hold, and the guess of the bonus does, too."""
        if not self.ahead or not self.gamma:
            return 0.0
        return self.runs()[-1] * (self.accepted(self.gamma) if self.guess is None else self.guess)

    @property
    def block_bytes(self) -> float:
        """Of a round's block."""
        return FRAME_BYTES + self.gamma * self.encoding.size

    def alone(self) -> Setup:
        """The same load without speculation; clients then ask the target itself, so that no link lies between."""
        return replace(self, gamma=0, ahead=False, link=Link())


def per_position(tested: Sequence[float], accepted: Sequence[float]) -> tuple[float, ...]:
    """Conditional acceptance by offset from counts: a proposal is tested where all before it were accepted."""
    return tuple(hit / tried for tried, hit in zip(tested, accepted, strict=False) if tried > 0)


def _check(name: str, value: float) -> None:
    if not (isfinite(value) and value >= 0):
        raise ConfigError(name, f"must be at least 0, got {value}")
