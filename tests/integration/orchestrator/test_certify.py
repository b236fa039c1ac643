"""`draftproof certify` against whole clusters: it passes honest ones, and fails one cheat after the other."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from draft_service.drafters import model
from draftproof.cli.main import cli
from draftproof.sampling.draft_q import support
from draftproof.verification import drafts
from draftproof.verification.intake import admit
from target_service import intake
from tests.e2e import variants
from tests.integration.orchestrator.conftest import Build
from tests.integration.services.harness import model_drafter, table

SPREAD = 3.0
HEAT = 6.0
QUICK = ("--prompt", "hello", "--streams", "16", "--prefixes", "20", "--cells", "10")
COARSE = ("--tv", "0.25")


async def certify(address: str, *arguments: str) -> Any:
    """Runs the command in a thread; the cluster stays in this loop."""
    return await asyncio.to_thread(CliRunner().invoke, cli, ["certify", address, *QUICK, *arguments])


def setting(noise: float = 0.5, encoding: str = "lattice", **changes: Any) -> dict[str, Any]:
    """A cluster whose draft is neither good nor useless."""
    return {
        "engine": lambda: table(slots=16, spread=SPREAD),
        "drafter": lambda: model_drafter(table(noise=noise, slots=32, spread=SPREAD), encoding),
        **changes,
    }


async def test_an_honest_cluster_passes_under_every_rule(cluster: Build, tmp_path: Path) -> None:
    made = await cluster(**setting())
    wanted = ("--setting", "plain", "--setting", "penalties", "--out", str(tmp_path), "--json")
    result = await certify(made.address, *COARSE, *wanted)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found == json.loads((tmp_path / "report.json").read_text())
    assert {row["rule"] for row in found["cases"]} == {"block", "token", "coupled"}
    assert len(found["cases"]) == 4
    assert all(row["sources"][kind] > 0 for row in found["cases"][:2] for kind in ("accepted", "resampled", "bonus"))
    assert all(row["power"] >= 0.99 and row["tv_bound"] <= 0.25 for row in found["cases"])
    assert "finds TV ≥ 0.25 with probability ≥ 0.99" in result.stderr
    report = (tmp_path / "report.md").read_text()
    assert "**PASSED" in report
    assert all(row["name"] in report for row in found["cases"])
    assert (tmp_path / "cells.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize("encoding", ["sparse", "dense"])
async def test_an_honest_cluster_passes_with_float_encodings(cluster: Build, encoding: str) -> None:
    made = await cluster(**setting(encoding=encoding))
    result = await certify(made.address, *COARSE, "--setting", "temperature=0.8,top_k=6", "--rule", "block")
    assert result.exit_code == 0, result.output


def hotter(q: Any, word: int) -> int:
    """A draw at another temperature than that of the q that is sent."""
    ids, masses = support(q)
    return int(ids[variants._inverse_cdf(masses ** (1 / HEAT), (word >> 11) * 2.0**-53)])


def _install(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    match name:
        case "resample_from_p" | "absolute_residual":
            monkeypatch.setattr(drafts, "residual", drafts.residual)  # restored at the end
            variants.RULES[name]()
        case "hotter":
            monkeypatch.setattr(model, "draw", hotter)
            monkeypatch.setattr(intake, "admit", lambda *arguments: admit(*arguments, check_draws=False))


@pytest.mark.parametrize("name", ["resample_from_p", "absolute_residual", "hotter"])
async def test_a_cheat_fails(cluster: Build, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    _install(monkeypatch, name)
    made = await cluster(**setting(noise=0.8))
    result = await certify(made.address, "--samples", "400", "--setting", "plain", "--rule", "block", "--json")
    assert result.exit_code == 1, result.output
    (row,) = json.loads(result.stdout)["cases"]
    assert row["failed"]
    assert row["p_value"] < 1e-6
    assert row["tv_bound"] > row["findable"]


async def test_what_can_not_run_says_so_by_its_exit_code(cluster: Build) -> None:
    made = await cluster()
    lossy = await certify(made.address, "--rule", "lenient", "--lenience", "0.5", "--setting", "plain")
    assert (lossy.exit_code, "--allow-lossy" in lossy.output) == (2, True)
    for wrong in (("--rule", "magic"), ("--setting", "top_p=often"), ("--setting", "seed=3"), ("--rule", "typical")):
        assert (await certify(made.address, *wrong)).exit_code == 2
