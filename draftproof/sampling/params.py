"""Sampling settings of one request, validated; free of torch and numpy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from numbers import Integral, Real

from draftproof.errors import InvalidArgumentError

UINT32_MAX = 2**32 - 1
UINT64_MAX = 2**64 - 1
MAX_STOP_STRINGS = 16
MAX_LOGPROBS = 20


class Rule(StrEnum):
    """How proposals are judged; docs/rules.md says what each does and proves."""

    TOKEN = "token"
    """One proposal after the other, each by min(1, p/q)."""
    BLOCK = "block"
    """The block as a whole: the same law, never fewer accepted tokens in expectation."""
    TREE = "tree"
    """Several candidates a position, each tried against what the ones before it left of p."""
    COUPLED = "coupled"
    """Both sides draw with the same noise: with a seed the text doesn't depend on the draft at all."""
    LENIENT = "lenient"
    """Lossy: min(1, p / (lenience * q))."""
    TYPICAL = "typical"
    """Lossy: whatever the target finds likely enough."""

    @property
    def lossy(self) -> bool:
        """Whether it bends the output law, by no more than it says."""
        return self in (Rule.LENIENT, Rule.TYPICAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one request turns logits into a distribution, and when it stops.

    Attributes:
        temperature: softmax temperature, >= 0; 0 is a one-hot argmax.
        top_k: keeps the k largest logits and all that tie with the k-th; 0 is off.
        top_p: keeps the smallest set whose mass reaches this, in (0, 1]; 1 is off.
        min_p: keeps tokens with at least this share of the largest probability, in [0, 1]; 0 is off.
        repetition_penalty: divides positive and multiplies negative logits of tokens in prompt or output, > 0.
        presence_penalty: subtracted once from the logit of every token in the output, in [-2, 2].
        frequency_penalty: subtracted per occurrence in the output, in [-2, 2].
        logit_bias: token id -> what is added to its logit, in [-100, 100]; copied.
        seed: of the request's random numbers, in [0, 2**64); None takes a fresh key.
        max_tokens: most tokens to generate, >= 1; None is up to the context.
        stop: strings that end the text, at most 16, none empty.
        stop_token_ids: ids that end the output.
        ignore_eos: the end-of-sequence token is an ordinary one.
        logprobs: alternatives to report beside each token's own log-probability, 0..20; None reports nothing.
        gamma: proposals per round; 0 turns speculation off; None leaves it to the server.
        rule: how proposals are judged; also by its name.
        lenience: of a lossy rule, in (0, 1), smaller is laxer: the l of lenient, the epsilon of typical. Such a rule
            needs it, the others refuse it.

    Raises:
        InvalidArgumentError: names the field and its limit.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    gamma: int | None = None
    rule: Rule = Rule.BLOCK
    lenience: float | None = None

    def __post_init__(self) -> None:
        self._set("temperature", _real("temperature", self.temperature, "finite and >= 0", low=0.0))
        self._set("top_k", _integer("top_k", self.top_k, 0, UINT32_MAX))
        self._set("top_p", _real("top_p", self.top_p, "in (0, 1]", low=0.0, high=1.0, above_low=True))
        self._set("min_p", _real("min_p", self.min_p, "in [0, 1]", low=0.0, high=1.0))
        self._set(
            "repetition_penalty",
            _real("repetition_penalty", self.repetition_penalty, "finite and > 0", low=0.0, above_low=True),
        )
        for name in ("presence_penalty", "frequency_penalty"):
            self._set(name, _real(name, getattr(self, name), "in [-2, 2]", low=-2.0, high=2.0))
        self._set("logit_bias", _bias(self.logit_bias))
        for name, low, high in (
            ("seed", 0, UINT64_MAX),
            ("max_tokens", 1, UINT32_MAX),
            ("logprobs", 0, MAX_LOGPROBS),
            ("gamma", 0, UINT32_MAX),
        ):
            value = getattr(self, name)
            if value is not None:
                self._set(name, _integer(name, value, low, high))
        self._set("stop", _stop(self.stop))
        self._set("stop_token_ids", _ids("stop_token_ids", self.stop_token_ids))
        if not isinstance(self.ignore_eos, bool):
            raise InvalidArgumentError.of("ignore_eos", "true or false", self.ignore_eos)
        self._set("rule", _rule(self.rule))
        self._set("lenience", _lenience(self.lenience, self.rule))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def greedy(self) -> bool:
        """Every distribution is a one-hot argmax."""
        return self.temperature == 0.0

    @property
    def needs_same_blocks(self) -> bool:
        """Its text depends on where blocks begin and who drafted them: the seed promises nothing about another run."""
        return self.seed is not None and not self.greedy and self.rule is not Rule.COUPLED

    @property
    def needs_history(self) -> bool:
        """Some penalty is active: the distribution depends on the tokens before, not on the logits alone."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    def check_vocab(self, vocab_size: int) -> None:
        """Checks what only a vocabulary can tell.

        Raises:
            InvalidArgumentError: a biased or stopping id is not in [0, vocab_size).
        """
        for name, ids in (("logit_bias", self.logit_bias), ("stop_token_ids", self.stop_token_ids)):
            for token_id in ids:
                if token_id >= vocab_size:
                    raise InvalidArgumentError.of(name, f"token ids in [0, {vocab_size})", token_id)


def _real(
    name: str, value: object, limit: str, *, low: float, high: float = math.inf, above_low: bool = False
) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidArgumentError.of(name, f"a number, {limit}", value)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or not low <= number <= high or (above_low and number == low):
        raise InvalidArgumentError.of(name, limit, value)
    return number


def _integer(name: str, value: object, low: int, high: int) -> int:
    # what the wire can hold is nobody's idea of a limit
    limit = f">= {low}" if high == UINT32_MAX else f"in [{low}, {high}]"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InvalidArgumentError.of(name, f"an integer {limit}", value)
    number = int(value)
    if not low <= number <= high:
        raise InvalidArgumentError.of(name, f"at most {high}" if number > high == UINT32_MAX else limit, value)
    return number


def _rule(value: object) -> Rule:
    for rule in Rule:
        if rule == value:
            return rule
    raise InvalidArgumentError.of("rule", f"one of {', '.join(Rule)}", value)


def _lenience(value: object, rule: Rule) -> float | None:
    if not rule.lossy:
        if value is not None:
            raise InvalidArgumentError.of("lenience", f"unset with the lossless rule {rule}", value)
        return None
    if value is None:
        raise InvalidArgumentError.of("lenience", f"set with the lossy rule {rule}", value)
    number = _real("lenience", value, "in (0, 1)", low=0.0, high=1.0, above_low=True)
    if number == 1.0:
        raise InvalidArgumentError.of("lenience", "in (0, 1)", value)
    return number


def _bias(value: object) -> Mapping[int, float]:
    if not isinstance(value, Mapping):
        raise InvalidArgumentError.of("logit_bias", "a mapping from token id to number", value)
    return {
        _integer("logit_bias", token_id, 0, UINT32_MAX): _real(
            f"logit_bias[{token_id}]", bias, "in [-100, 100]", low=-100.0, high=100.0
        )
        for token_id, bias in value.items()
    }


def _stop(value: object) -> tuple[str, ...]:
    # A lone string is a sequence of strings too: every letter would stop the text.
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise InvalidArgumentError.of("stop", "a sequence of strings", value)
    strings = tuple(value)
    if len(strings) > MAX_STOP_STRINGS:
        raise InvalidArgumentError.of("stop", f"at most {MAX_STOP_STRINGS} strings", len(strings))
    for string in strings:
        if not isinstance(string, str) or not string:
            raise InvalidArgumentError.of("stop", "non-empty strings", string)
    return strings


def _ids(name: str, value: object) -> tuple[int, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise InvalidArgumentError.of(name, "a sequence of token ids", value)
    return tuple(_integer(name, token_id, 0, UINT32_MAX) for token_id in value)
