"""Settings, rules and the cases they make."""

from __future__ import annotations

import pytest

from draftproof.cli.certify_cases import SETTINGS, biases, cases, settings
from draftproof.errors import InvalidArgumentError


def made(**changes: object) -> list[str]:
    options: dict = {"lenience": None, "gamma": 2, "prompts": 1, "every": False} | changes
    return [case.name for case in cases(settings(()), ("block", "token"), **options)]


def test_every_setting_meets_the_first_rule_and_every_rule_the_first_setting() -> None:
    assert set(made()) == {"plain, token", *(f"{name}, block" for name in SETTINGS)}
    assert len(made(every=True)) == 2 * len(SETTINGS)
    assert "top-p, block, prompt 2" in made(prompts=2)


def test_settings_by_their_fields() -> None:
    found = settings(["temperature=0.5,top_k=7", "plain"])
    assert found == {"temperature=0.5,top_k=7": {"temperature": 0.5, "top_k": 7}, "plain": {}}


@pytest.mark.parametrize("text", ["seed=3", "top_p", "top_p=often", "top_p=2", "logit_bias=1", "nonsense"])
def test_wrong_settings(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        settings([text])


def test_lenience_belongs_to_lossy_rules() -> None:
    lossless, lossy = cases(settings(["plain"]), ("block", "lenient"), lenience=0.5, gamma=2, prompts=1, every=False)
    assert (lossless.sampling.lenience, lossy.sampling.lenience) == (None, 0.5)
    with pytest.raises(InvalidArgumentError, match="lenience"):
        cases(settings(["plain"]), ("typical",), lenience=None, gamma=2, prompts=1, every=False)


def test_biases_move_what_is_likely() -> None:
    assert biases([0.1, 0.4, 0.2, 0.05, 0.25]) == {1: -1.5, 0: 2.0}
    assert biases([0.4, 0.6]) == {1: -1.5, 0: 2.0}
