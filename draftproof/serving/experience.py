"""What the rounds of a draft–target pair have shown: acceptance by offset, times, what each kind of block is worth."""

from __future__ import annotations

from dataclasses import dataclass, field

from draftproof.serving.drafting import Outlook

_SETTLED = 8.0
_OUTLIER = 4.0
# A verify row more costs this share of a round until measured.
_FRESH_SLOPE = 0.03


@dataclass(slots=True)
class Trials:
    """How often proposals were examined at each offset, and how often they held; decayed trial by trial."""

    tried: list[float] = field(default_factory=list)
    hit: list[float] = field(default_factory=list)

    def add(self, examined: int, accepted: int, decay: float) -> None:
        """Adds a round of `examined` proposals, the first `accepted` of which held."""
        missing = examined - len(self.tried)
        if missing > 0:
            self.tried += [0.0] * missing
            self.hit += [0.0] * missing
        # those behind the first rejection were not examined given that all before them held
        for i in range(min(examined, accepted + 1)):
            self.tried[i] = decay * self.tried[i] + 1
            self.hit[i] = decay * self.hit[i] + (i < accepted)

    def doubt(self, most: float) -> None:
        """Lets new trials count: keeps the rates, but no more than `most` trials' worth of them."""
        for i, tried in enumerate(self.tried):
            if tried > most:
                self.tried[i], self.hit[i] = most, self.hit[i] * most / tried


@dataclass(slots=True)
class Timing:
    """Decayed sums for the least-squares line of round time over γ, drafting left out."""

    weight: float = 0.0
    gammas: float = 0.0
    squares: float = 0.0
    seconds: float = 0.0
    products: float = 0.0
    wires: float = 0.0
    wire_seconds: float = 0.0

    @property
    def wire(self) -> float:
        """Mean of what a round trip takes beyond the target's own work, seconds."""
        return self.wire_seconds / self.wires if self.wires else 0.0

    def add(self, gamma: int, target_seconds: float, wire_seconds: float | None, decay: float) -> None:
        """Adds a round; one that took far longer than usual says little about γ and is cut down.

        `wire_seconds` is None where there was no trip; the usual one is added, so that the line means the same.
        """
        if wire_seconds is None:
            wire_seconds = self.wire
        else:
            if self.wires > _SETTLED:
                wire_seconds = min(wire_seconds, _OUTLIER * self.wire)
            self.wires = decay * self.wires + 1
            self.wire_seconds = decay * self.wire_seconds + wire_seconds
        round_seconds = target_seconds + wire_seconds
        if self.weight > _SETTLED:
            round_seconds = min(round_seconds, _OUTLIER * self.seconds / self.weight)
        self.weight = decay * self.weight + 1
        self.gammas = decay * self.gammas + gamma
        self.squares = decay * self.squares + gamma * gamma
        self.seconds = decay * self.seconds + round_seconds
        self.products = decay * self.products + gamma * round_seconds

    def line(self) -> tuple[float, float]:
        """Seconds of a round without proposals, and of each proposal more."""
        mean_gamma = self.gammas / self.weight
        mean = self.seconds / self.weight
        variance = self.squares - self.weight * mean_gamma**2
        covariance = self.products - self.weight * mean_gamma * mean
        # pulled towards the slope of a fresh pair by one round's worth of evidence
        slope = max(0.0, (covariance + 4.0 * _FRESH_SLOPE * mean) / (variance + 4.0))
        base = max(mean - slope * mean_gamma, 0.1 * mean)
        return base, slope


@dataclass(slots=True)
class Drafting:
    """Decayed time of one proposal."""

    drafted: float = 0.0
    seconds: float = 0.0

    @property
    def step(self) -> float:
        """Seconds of a proposal."""
        return self.seconds / self.drafted if self.drafted else 0.0

    def add(self, gamma: int, seconds: float, decay: float) -> None:
        """Adds the drafting of a block."""
        if self.drafted > _SETTLED:
            seconds = min(seconds, gamma * _OUTLIER * self.step)
        if gamma:
            self.drafted = decay * self.drafted + gamma
            self.seconds = decay * self.seconds + seconds


@dataclass(slots=True)
class Kind:
    """What has been seen of one kind of block, and when it is probed next; counts are of all sessions' rounds."""

    trials: Trials = field(default_factory=Trials)
    drafting: Drafting = field(default_factory=Drafting)
    since_probe: int = 0
    probe_after: int = 0
    since_opening: int = 2**31
    resting: bool = False


@dataclass(slots=True)
class Experience:
    """What all sessions of one draft–target pair have seen: times of the target, and what each kind of block is worth.

    A kind is whether the text is greedy, and the outlook.

    Attributes:
        sessions: how many there are now.
    """

    sessions: int = 0
    timing: Timing = field(default_factory=Timing)
    kinds: dict[tuple[bool, Outlook], Kind] = field(default_factory=dict)
