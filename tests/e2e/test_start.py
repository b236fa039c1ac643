"""What a newcomer does wrong first: one clear line that says what to do, and exit code 1."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from draftproof.testing.tiny import make_tiny_model
from tests.e2e.conftest import Models
from tests.e2e.processes import Launcher, service

SECONDS = 90.0


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    """Processes that come up from nothing, as users start them."""
    with Launcher(tmp_path, fresh=True) as started:
        yield started


def refusal(launcher: Launcher, module: str, *arguments: str) -> str:
    """The one line that a service says on its way out."""
    running = launcher.start(module, service(module, "--dtype", "float32", *arguments))
    assert running.process.wait(SECONDS) == 1
    lines = running.log.read_text().splitlines()
    said = [line for line in lines if line.startswith("error: ")]
    assert len(said) == 1, lines
    assert not any("Traceback" in line for line in lines), lines
    return said[0]


@pytest.mark.parametrize("module", ["target_service", "draft_service"])
def test_no_model_files(launcher: Launcher, tmp_path: Path, module: str) -> None:
    missing = tmp_path / "not-there"
    extra = ("--drafter", "model") if module == "draft_service" else ()
    line = refusal(launcher, module, "--model", str(missing), "--port", "0", *extra)
    assert str(missing) in line
    assert "give an existing folder" in line


def test_a_folder_without_a_model(launcher: Launcher, tmp_path: Path) -> None:
    line = refusal(launcher, "target_service", "--model", str(tmp_path), "--port", "0")
    assert "config.json" in line
    assert "save_pretrained" in line


@pytest.mark.parametrize("module", ["target_service", "draft_service"])
def test_a_port_in_use(launcher: Launcher, models: Models, module: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = refusal(launcher, module, "--model", str(models.target(8)), "--port", str(port))
    assert f"port {port}" in line
    assert "choose another port" in line


def test_mismatched_models(launcher: Launcher, models: Models, tmp_path: Path) -> None:
    """The draft says which token differs and stops; the target goes on serving others."""
    other = make_tiny_model(tmp_path / "other", vocab_size=16)
    target = launcher.target(models.target(8))
    arguments = ("--model", str(other), "--drafter", "model", "--port", "0", "--target", target.address)
    line = refusal(launcher, "draft_service", *arguments)
    # both list letters from "a" on; id 7 ends the text of one and is the letter h of the other
    assert "token 7" in line
    assert "<eos>" in line
    assert "serve a draft with the target's own tokenizer" in line
    assert target.process.poll() is None
    launcher.draft(target, models.draft(8, "good"), "--drafter", "model")
