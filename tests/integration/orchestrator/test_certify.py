"""`draftproof certify` against whole clusters: it passes honest ones, and fails one cheat after the other."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from draft_service.drafters import model
from draft_service.drafters.model import ModelDrafter
from draft_service.drafters.ngram import NgramDrafter
from draftproof.cli.main import cli
from draftproof.sampling.draft_q import draw, support
from draftproof.sampling.race import winners
from draftproof.verification import drafts
from draftproof.verification.intake import admit
from draftproof.verification.round import verify_rounds
from target_service import intake, passes
from target_service.audit import Audit
from tests.e2e import variants
from tests.integration.orchestrator.conftest import Build
from tests.integration.services.harness import model_drafter, table

SPREAD = 3.0
HEAT = 6.0
COOL = 0.9
TOP = 3
TARGET_HEAT = 2.0
# Cheats that take more samples to see, and how many; and those that show the better the draft is.
SAMPLES = {"cooler": 12_000, "top_two_swapped": 800, "resample_from_p": 1000}
SUBTLE = ("cooler", "top_two_swapped")
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
    rules = ("--rule", "block", "--rule", "token")
    result = await certify(made.address, *COARSE, "--setting", "temperature=0.8,top_k=6", *rules)
    assert result.exit_code == 0, result.output


def _drawn(weights: Callable[[np.ndarray], np.ndarray]) -> Callable[[Any, int], int]:
    """A draw from other masses than those that are sent."""

    def draw(q: Any, word: int) -> int:
        ids, masses = support(q)
        return int(ids[variants._inverse_cdf(weights(masses), (word >> 11) * 2.0**-53)])

    return draw


def _top_two_swapped(masses: np.ndarray) -> np.ndarray:
    swapped = masses.copy()
    first, second = np.argsort(-masses, kind="stable")[:2] if len(masses) > 1 else (0, 0)
    swapped[[first, second]] = masses[[second, first]]
    return swapped


def _send_the_top_draw_from_all(patch: pytest.MonkeyPatch, made: ModelDrafter) -> None:
    """q on the wire has the likeliest tokens alone; the tokens come from the whole of q."""
    encode, whole = made._encode, {}

    def truncated(q: torch.Tensor, blocks: Any) -> Any:
        kept = torch.where(q >= q.topk(TOP).values[:, -1:], q, 0.0)
        sent = list(encode(kept / kept.sum(dim=-1, keepdim=True), blocks))
        whole.update({id(short): (short, full) for short, full in zip(sent, encode(q, blocks), strict=True)})
        return sent

    patch.setattr(made, "_encode", truncated)
    patch.setattr(model, "draw", lambda q, word: draw(whole.pop(id(q), (q, q))[1], word))


def _other_temperature(patch: pytest.MonkeyPatch) -> None:
    """The target states p as asked for and samples from a hotter one."""

    def hotter(logits: Any, rounds: Any, **options: Any) -> Any:
        changed = [
            r
            if r.trace_top is not None
            else replace(r, params=replace(r.params, temperature=r.params.temperature * TARGET_HEAT))
            for r in rounds
        ]
        return verify_rounds(logits, changed, **options)

    patch.setattr(passes, "verify_rounds", hotter)


def _cheating(patch: pytest.MonkeyPatch, name: str, encoding: str) -> dict[str, Any]:
    """The setting of a cluster with a cheat in it."""
    # The audit would catch the draft and go on without it; here it is to lie to the end.
    patch.setattr(Audit, "quarantined", lambda self, drafter: False)
    drafter = model_drafter(table(noise=0.3 if name in SUBTLE else 0.8, slots=32, spread=SPREAD), encoding)
    match name:
        case "resample_from_p" | "absolute_residual":
            patch.setattr(drafts, "residual", drafts.residual)  # restored at the end
            variants.RULES[name]()
        case "wrong_temperature":
            _other_temperature(patch)
        case _:
            patch.setattr(intake, "admit", lambda *arguments: admit(*arguments, check_draws=False))
    match name:
        case "much_hotter" | "cooler":
            heat = HEAT if name == "much_hotter" else COOL
            patch.setattr(model, "draw", _drawn(lambda masses: masses ** (1 / heat)))
        case "top_two_swapped":
            patch.setattr(model, "draw", _drawn(_top_two_swapped))
        case "top_sent_all_drawn":
            _send_the_top_draw_from_all(patch, drafter)
    return setting(drafter=lambda: drafter)


def _slow(*values: str) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("name", "rule", "encoding"),
    [
        ("resample_from_p", "block", "lattice"),
        _slow("resample_from_p", "token", "lattice"),
        _slow("resample_from_p", "block", "dense"),
        ("absolute_residual", "token", "lattice"),
        _slow("absolute_residual", "block", "sparse"),
        ("much_hotter", "block", "lattice"),
        _slow("cooler", "block", "lattice"),
        _slow("cooler", "token", "dense"),
        ("top_two_swapped", "token", "lattice"),
        _slow("top_two_swapped", "block", "lattice"),
        _slow("top_two_swapped", "block", "sparse"),
        _slow("top_two_swapped", "token", "dense"),
        ("wrong_temperature", "coupled", "lattice"),
        _slow("wrong_temperature", "block", "lattice"),
        _slow("wrong_temperature", "token", "dense"),
    ],
)
async def test_a_cheat_fails(
    cluster: Build, monkeypatch: pytest.MonkeyPatch, name: str, rule: str, encoding: str
) -> None:
    made = await cluster(**_cheating(monkeypatch, name, encoding))
    samples = SAMPLES.get(name, 400)
    result = await certify(made.address, "--samples", str(samples), "--setting", "plain", "--rule", rule, "--json")
    assert result.exit_code == 1, result.output
    (row,) = json.loads(result.stdout)["cases"]
    assert row["failed"]
    assert row["p_value"] < 1e-6
    assert row["tv_bound"] > row["findable"]


@pytest.mark.parametrize(
    ("rule", "encoding"), [("block", "lattice"), _slow("token", "lattice"), _slow("block", "sparse")]
)
async def test_a_draft_that_draws_what_it_says_it_can_not_fails(
    cluster: Build, monkeypatch: pytest.MonkeyPatch, rule: str, encoding: str
) -> None:
    """The target sees tokens of no mass and says so: answers that aren't lossless fail, whatever the counts say."""
    made = await cluster(**_cheating(monkeypatch, "top_sent_all_drawn", encoding))
    result = await certify(made.address, "--samples", "200", "--setting", "plain", "--rule", rule, "--json")
    assert result.exit_code == 1, result.output
    (row,) = json.loads(result.stdout)["cases"]
    assert row["not_lossless"] > 20


async def test_no_draft_can_make_coupled_text_fail(cluster: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is believed under that rule: a draft that draws with other noise costs acceptance alone."""
    monkeypatch.setattr(model, "winners", lambda p, keys, positions: winners(p, [bytes(32)] * len(keys), positions))
    made = await cluster(**setting())
    result = await certify(made.address, "--samples", "400", "--setting", "plain", "--rule", "coupled", "--json")
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)["cases"]
    assert row["sources"]["accepted"] < row["sources"]["target"]


async def test_a_drafter_that_proposes_nothing_is_no_proof(cluster: Build, tmp_path: Path) -> None:
    made = await cluster(**setting(drafter=NgramDrafter))
    page = tmp_path / "page.html"
    wanted = ("--samples", "200", "--setting", "plain", "--rule", "block", "--html", str(page))
    result = await certify(made.address, *wanted)
    assert result.exit_code == 2, result.output
    assert "UNTESTED: the drafter (ngram) proposed nothing" in result.output
    alone = await certify(made.address, *wanted, "--gamma", "0")
    assert (alone.exit_code, "PASSED" in alone.output) == (0, True)
    text = page.read_text()
    assert "PASSED" in text
    assert text.count("<svg") == 2
    assert not re.search(r"""(src|href)=["'](?!#)""", text)


async def test_what_can_not_run_says_so_by_its_exit_code(cluster: Build) -> None:
    made = await cluster()
    lossy = await certify(made.address, "--rule", "lenient", "--lenience", "0.5", "--setting", "plain")
    assert (lossy.exit_code, "--allow-lossy" in lossy.output) == (2, True)
    for wrong in (("--rule", "magic"), ("--setting", "top_p=often"), ("--setting", "seed=3"), ("--rule", "typical")):
        assert (await certify(made.address, *wrong)).exit_code == 2
