"""A model call that never returns: it holds up neither requests that can do without it nor the end of the process."""

from __future__ import annotations

import sys

import pytest

from draftproof.client import Client
from draftproof.errors import RequestError
from tests.e2e.processes import Launcher, Running

SECONDS = 90.0


def _start(launcher: Launcher, role: str, *more: str) -> Running:
    return launcher.start(role, [sys.executable, "-m", "tests.e2e.hanging", role, *more])


def _ends(running: Running) -> None:
    running.terminate()
    assert running.process.wait(SECONDS) == 1, running.tail()
    assert list(running.events("a call into the model does not return; leaving it"))
    assert "error: a call into the model" in running.log.read_text()


def test_a_hung_target_ends_after_its_grace(launcher: Launcher) -> None:
    target = _start(launcher, "target")
    with Client(target.address) as client, pytest.raises(RequestError):
        client.generate("abc", max_tokens=20, ignore_eos=True, timeout=2.0)
    _ends(target)


def test_a_hung_draft_model_costs_speed_alone(launcher: Launcher) -> None:
    target = _start(launcher, "sound")
    draft = _start(launcher, "draft", target.address)
    draft.event("target connected")
    with Client(draft.address) as client:
        completion = client.generate("abc", max_tokens=20, ignore_eos=True, timeout=SECONDS)
    assert completion.usage.completion_tokens == 20
    assert list(draft.events("the drafter hangs; requests go on without it"))
    _ends(draft)
    assert target.stop() == 0, "nothing hangs there"
