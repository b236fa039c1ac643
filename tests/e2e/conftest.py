"""Processes for end-to-end tests; what they logged is shown beside a failure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from draftproof.testing.tiny import make_draft_of, make_tiny_model
from tests.e2e.processes import Launcher

SHOWN = 4
GOOD, BAD = 0.05, 0.4
"""Noise of the drafts."""


@dataclass(frozen=True)
class Models:
    """Folders of tiny models of one vocabulary, made when asked for.

    Attributes:
        folder: where they are.
    """

    folder: Path

    def target(self, vocab_size: int) -> Path:
        """The target."""
        made = self.folder / f"target-{vocab_size}"
        return made if made.exists() else make_tiny_model(made, vocab_size=vocab_size, seed=1, spread=1.2)

    def draft(self, vocab_size: int, quality: str) -> Path:
        """A draft: good, bad, garbage, or the same model."""
        made = self.folder / f"{quality}-{vocab_size}"
        if made.exists():
            return made
        match quality:
            case "garbage":
                return make_tiny_model(made, vocab_size=vocab_size, seed=2, spread=1.5)
            case _:
                noise = {"good": GOOD, "bad": BAD, "same": 0.0}[quality]
                return make_draft_of(self.target(vocab_size), made, noise)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Tiny models, shared by all tests."""
    return Models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    """Processes of one test."""
    with Launcher(tmp_path) as started:
        yield started


@pytest.fixture(scope="module")
def shared_launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """Processes that the tests of a file share."""
    with Launcher(tmp_path_factory.mktemp("shared")) as started:
        yield started


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    """Adds the logs of a failed test's processes to its report."""
    report = yield
    if report.failed:
        for value in getattr(item, "funcargs", {}).values():
            launcher = value if isinstance(value, Launcher) else getattr(value, "launcher", None)
            for running in launcher.running[-SHOWN:] if isinstance(launcher, Launcher) else []:
                report.sections.append((f"{running.name}, {running.log}", running.tail()))
    return report
