"""What is certified: sampling settings, rules and prompts, and the cases they make."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftproof.errors import InvalidArgumentError
from draftproof.sampling.params import Rule, SamplingParams

PROMPT = "The capital of France is"
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "top-p": {"temperature": 0.7, "top_p": 0.9},
    "min-p": {"temperature": 1.3, "min_p": 0.05},
    "penalties": {"repetition_penalty": 1.2, "presence_penalty": 0.4, "frequency_penalty": 0.3},
    "bias": {"logit_bias": {}},
}
"""Presets. The one of biases gets its tokens from p at the prompt."""

_PIPELINE = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
)
_LESS, _MORE = -1.5, 2.0


@dataclass(frozen=True, slots=True)
class Case:
    """One test.

    Attributes:
        setting: its name.
        sampling: what decides p, and the rule.
        prompt: number of the prompt.
    """

    setting: str
    sampling: SamplingParams
    prompt: int = 0

    @property
    def name(self) -> str:
        """Names it in a report."""
        where = f", prompt {self.prompt + 1}" if self.prompt else ""
        return f"{self.setting}, {self.sampling.rule}{where}"

    @property
    def law(self) -> tuple[str, int]:
        """What p depends on; cases that agree in it share their prefixes."""
        return self.setting, self.prompt


def settings(given: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Settings by name: presets, or fields like `temperature=0.7,top_p=0.9`. None given: all presets.

    Raises:
        InvalidArgumentError: neither a preset nor settings of the pipeline.
    """
    found = {}
    for text in given or SETTINGS:
        fields = dict(SETTINGS[text]) if text in SETTINGS else _parse(text)
        SamplingParams(**fields)
        found[text] = fields
    return found


def _parse(text: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name not in _PIPELINE or name == "logit_bias":
            limit = f"a preset ({', '.join(SETTINGS)}) or NAME=VALUE,… of {', '.join(_PIPELINE[:-1])}"
            raise InvalidArgumentError.of("setting", limit, text)
        try:
            fields[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            raise InvalidArgumentError.of(f"setting {name}", "a number", value) from None
    return fields


def biases(p: Sequence[float]) -> dict[int, float]:
    """A bias against the likeliest token, one for the fourth: both matter, and none decides everything."""
    ranked = sorted(range(len(p)), key=lambda token: -p[token])
    return {ranked[0]: _LESS, ranked[min(3, len(ranked) - 1)]: _MORE}


def cases(
    found: Mapping[str, Mapping[str, Any]],
    rules: Sequence[str],
    *,
    lenience: float | None,
    gamma: int,
    prompts: int,
    every: bool,
) -> list[Case]:
    """The first setting under every rule and every setting under the first rule, or all pairs, for each prompt.

    Raises:
        InvalidArgumentError: an unknown rule, or a lossy one without its lenience.
    """
    names, judged = list(found), list(dict.fromkeys(rules))
    pairs = [(name, rule) for name in names for rule in judged if every or name == names[0] or rule == judged[0]]
    made = []
    for prompt in range(prompts):
        for name, rule in pairs:
            lossy = rule in [one for one in Rule if one.lossy]
            sampling = SamplingParams(
                **found[name],
                rule=rule,  # type: ignore[arg-type]  # a name does
                lenience=lenience if lossy else None,
                gamma=gamma,
                max_tokens=gamma + 1,
                ignore_eos=True,
            )
            made.append(Case(name, sampling, prompt))
    return made


def pipeline_fields(sampling: SamplingParams) -> dict[str, Any]:
    """The fields that decide p."""
    return {name: value for name, value in dataclasses.asdict(sampling).items() if name in _PIPELINE}
