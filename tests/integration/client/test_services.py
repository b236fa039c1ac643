"""The SDK and the command line over real services with a tiny model, each in a process of its own."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bench.services import TwoServices
from draftproof import AsyncClient, Client, errors
from draftproof.cli.health import check as is_healthy
from draftproof.cli.stack import Child, Service, Stack
from draftproof.testing.tiny import make_tiny_model

_SECONDS = 100.0
_CALL = {"temperature": 0.5, "seed": 5, "gamma": 4, "max_tokens": 300, "ignore_eos": True}
_PROMPT = "hello hello hello hello"


class Local:
    """A running target and draft."""

    def __init__(self, stack: Stack, services: TwoServices) -> None:
        self.stack = stack
        self.target = stack.wait_serving(stack.start(services.target()), _SECONDS, is_healthy)
        self._draft = stack.start(services.draft(self.target))
        self.draft = stack.wait_serving(self._draft, _SECONDS, is_healthy)
        port = int(self.draft.rpartition(":")[2])
        self._again: Service = dataclasses.replace(services, port=port).draft(self.target)

    def restart_draft(self, number: signal.Signals) -> None:
        """Ends the draft by a signal and starts it again on its port."""
        child: Child = self._draft
        child.process.send_signal(number)
        child.process.wait()
        child.stop(1.0)
        self._draft = self.stack.start(self._again)
        self.stack.wait_serving(self._draft, _SECONDS, is_healthy)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 512 tokens."""
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", vocab_size=512)


@pytest.fixture(scope="module")
def local(model: Path) -> Iterator[Local]:
    """8 slots, 64 places in the queue, little grace."""
    services = TwoServices(model=str(model), grace=0.2, slots=8, queue_limit=64)
    with Stack() as stack:
        yield Local(stack, services)


def test_draft_and_target_give_the_same_greedy_text(local):
    with Client(local.draft) as front, Client(local.target) as target:
        ours = front.generate(_PROMPT, temperature=0, max_tokens=60)
        alone = target.generate(_PROMPT, temperature=0, max_tokens=60)
        assert ours.token_ids == alone.token_ids
        assert ours.lossless
        assert (front.info().role, target.info().role) == ("draft", "target")
        assert front.info().targets == (local.target,)


def test_what_is_streamed_is_what_is_counted(local):
    with Client(local.draft) as client, client.stream(_PROMPT, **_CALL, logprobs=2, trace=3) as stream:
        chunks = list(stream)
        done = stream.completion
    assert "".join(chunk.text for chunk in chunks) == done.text
    assert sum(len(chunk.tokens) for chunk in chunks) == done.usage.completion_tokens == 300
    assert sum(chunk.accepted for chunk in chunks) == done.stats.accepted
    assert sum(chunk.examined for chunk in chunks) == done.stats.drafted
    assert len(chunks) == done.stats.rounds
    assert all(token.logprobs.logprob <= 0 and len(token.logprobs.top) == 2 for token in done.tokens)
    assert [token.trace.position for token in done.tokens] == list(
        range(len(done.prompt_ids), len(done.prompt_ids) + 300)
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_generation_outlives_its_draft_server(local, number):
    with Client(local.draft) as client:
        whole = client.generate(_PROMPT, **_CALL)
        with client.stream(_PROMPT, **_CALL) as stream:
            for _ in range(10):
                next(stream)
            restart = threading.Thread(target=local.restart_draft, args=(number,))
            restart.start()
            for _ in range(10):
                next(stream)
            if number == signal.SIGKILL:
                restart.join()
            for _ in stream:
                pass
        restart.join()
        done = stream.completion
    assert done.token_ids == whole.token_ids
    assert done.text == whole.text
    assert done.stats.rounds == whole.stats.rounds
    assert done.stats.accepted_per_position == whole.stats.accepted_per_position


async def test_two_hundred_at_once_over_eight_slots(local):
    async with AsyncClient(local.draft) as client:
        done = await asyncio.gather(*(client.generate("hi", max_tokens=5, seed=i) for i in range(200)))
    assert len(done) == 200
    assert all(completion.usage.completion_tokens <= 5 for completion in done)


def test_errors_of_real_servers(local):
    with Client(local.draft) as client:
        with pytest.raises(errors.ContextLengthError):
            client.generate(token_ids=[5] * 5000)
        with pytest.raises(errors.InvalidArgumentError, match="gamma"):
            client.generate("x", gamma=1000)
        with pytest.raises(errors.InvalidArgumentError):
            client.generate(token_ids=[100_000])


def run(command: str, address: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command against a server that asks for a token."""
    return subprocess.run(
        [sys.executable, "-m", "draftproof.cli.main", command, *arguments, "-a", address],
        capture_output=True,
        text=True,
        env={**os.environ, "DRAFTPROOF_TOKEN": "secret", "COLUMNS": "200"},
        timeout=60,
    )


def test_up_serves_until_interrupted(model):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = ["up", "--model", str(model), "--port", address.rpartition(":")[2], "--grace", "0.5"]
    process = subprocess.Popen(
        [sys.executable, "-m", "draftproof.cli.main", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "DRAFTPROOF_ORCHESTRATOR_TOKEN": "secret"},
    )
    try:
        said = ""
        while "Ctrl-C" not in said:
            line = process.stdout.readline()
            assert line, said
            said += line
        assert f"at {address}" in said
        with pytest.raises(errors.UnauthenticatedError), Client(address) as stranger:
            stranger.generate("hi", max_tokens=2)
        doctor = run("doctor", address)
        assert doctor.returncode == 0, doctor.stdout
        top = run("top", address)
        assert top.returncode == 0
        assert re.search(r"draft-0 +ready", top.stdout)
        assert re.search(r"target-0 +ready", top.stdout)
        assert run("replace", address, "draft-0").returncode == 0
        assert "worker must be one that this orchestrator has placed" in run("replace", address, "draft-7").stderr
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0
    assert "stopped" in rest


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL])
def test_nothing_outlives_up(model, tmp_path, number):
    """Neither a closed terminal nor a kill leaves a cluster behind."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path / "up.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "draftproof.cli.main", "up", "--model", str(model), "--port", str(port)],
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        until(lambda: "Ctrl-C" in log.read_text())
        children = psutil.Process(process.pid).children(recursive=True)
        names = " ".join(" ".join(child.cmdline()) for child in children)
        assert "orchestrator" in names
        assert "raylet" in names
        assert "WorkerActor" in names
    finally:
        process.send_signal(number)
        process.wait(60)
    until(lambda: not any(child.is_running() for child in children))


def until(true):
    end = time.monotonic() + _SECONDS
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_up_names_a_draft_that_fits_no_target(model, tmp_path):
    other = make_tiny_model(tmp_path / "other", vocab_size=400)
    command = ["up", "--model", str(model), "--drafter", "model", "--draft-model", str(other), "--port", "0"]
    done = subprocess.run(
        [sys.executable, "-m", "draftproof.cli.main", *command],
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    assert "400 tokens, 512 there" in line
    assert "give a draft model of the target's own family" in line


def test_up_names_a_model_that_is_not_there(tmp_path):
    command = ["up", "--model", str(tmp_path / "nothing"), "--port", "0"]
    done = subprocess.run(
        [sys.executable, "-m", "draftproof.cli.main", *command], capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    assert str(tmp_path / "nothing") in line
    assert "give an existing folder" in line
