"""`draftproof plan`: what it prints, what it takes from files, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from draftproof.cli.main import cli
from draftproof.cli.measure import Load, fit, line
from draftproof.errors import ConfigError

GIVEN = ["plan", "--pass-ms", "38", "--token-ms", "0.05", "--draft-step-ms", "4", "--rtt-ms", "10", "--vocab", "128256"]


def run(*words: str) -> str:
    result = CliRunner().invoke(cli, [*GIVEN, *words], env={"COLUMNS": "160"})
    if result.exception is not None:
        raise result.exception
    return result.stdout


def test_tables_name_the_choice_and_its_limit() -> None:
    text = run("--alpha", "0.75", "--streams", "32", "--bandwidth-mbit", "1000")
    for words in ("limited by", "tokens/s", "a simulation shows", "lattice", "target only"):
        assert words in text


def test_json_holds_the_same_and_a_file_gives_the_costs_back(tmp_path: Path) -> None:
    file = tmp_path / "costs.json"
    found = json.loads(run("--acceptance", "0.8,0.7", "--json", "--save", str(file)))
    again = CliRunner().invoke(cli, ["plan", "--from", str(file), "--rtt-ms", "10", "--vocab", "128256", "--json"])
    assert json.loads(again.stdout) == found
    assert found["best"]["gamma"] > 0
    assert found["best"]["tokens_per_second"] > found["target_only_tokens_per_second"]


def test_a_bench_row_with_costs_will_do(tmp_path: Path) -> None:
    file = tmp_path / "bench-plan.json"
    file.write_text(json.dumps([{}, {"costs": {"draft_step": 0.004, "pass_base": 0.04, "acceptance": [0.8]}}]))
    result = CliRunner().invoke(cli, ["plan", "--from", str(file), "--json"])
    assert json.loads(result.stdout)["best"]["gamma"] > 0


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ([], "--alpha"),
        (["--alpha", "0.7", "--acceptance", "0.7"], "--alpha"),
        (["--acceptance", "0.7;0.5"], "--acceptance"),
        (["--acceptance", "1.2"], "--acceptance"),
        (["--from", "nowhere.json"], "--from"),
    ],
)
def test_what_is_missing_or_wrong_is_named(words: list[str], option: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run(*words)
    assert option in caught.value.message


def test_costs_come_back_from_what_loads_show() -> None:
    def load(gamma: float, streams: int) -> Load:
        tokens = streams * (gamma + 1)
        rows = streams if gamma else 0
        step = 0.003 + 0.0005 * (rows - 1) if rows else 0.0
        seconds = 0.04 + 0.001 * tokens
        return Load(
            gamma=gamma,
            pass_tokens=tokens,
            pass_seconds=seconds - 0.002,
            step_rows=rows,
            step_seconds=step,
            round_draft=gamma * (step + 0.001),
            round_verify=0.002,
            round_seconds=seconds + gamma * (step + 0.001) + 0.005,
            tested=(100, 80) if gamma else (),
            accepted=(80, 40) if gamma else (),
            speed=1.0,
        )

    found = fit([load(0, 1), load(6, 1), load(6, 4), load(0, 4)])
    assert found["pass_base"] == pytest.approx(0.04)
    assert found["pass_token"] == pytest.approx(0.001)
    assert found["draft_step"] == pytest.approx(0.004)
    assert found["draft_row"] == pytest.approx(0.0005)
    assert found["overhead"] == pytest.approx(0.005)
    assert found["acceptance"] == [0.8, 0.5]


def test_lines_have_no_negative_parts() -> None:
    assert line([(1, 2.0), (2, 1.0)]) == (1.5, 0.0)
    intercept, slope = line([(1, 1.0), (10, 11.0)])
    assert intercept == pytest.approx(0, abs=0.2)
    assert slope >= 0
    assert intercept >= 0
