"""What the commands say and how they end, without a server."""

from __future__ import annotations

import io
import socket
import subprocess
import sys
from collections.abc import Sequence

import pytest
from rich.console import Console

import draftproof
from draftproof import client, errors
from draftproof.cli import demo, doctor, health, options, render, report, running, up, using
from draftproof.cli.cluster import LocalCluster, Progress
from draftproof.cli.demo import Run
from draftproof.cli.doctor import Level
from draftproof.cli.stack import ServiceError
from draftproof.client import Completion, Fingerprint, ServerInfo, Stats, TimeSplit, Token, TokenSource, Usage


def _run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run(
        [sys.executable, "-m", "draftproof.cli.main", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200", **environment},
        timeout=60,
        check=False,
    )


def _completion(ids: Sequence[int] = (1, 2), rounds: int = 1, lossless: bool = True) -> Completion:
    tokens = tuple(Token(i, f"<{i}>", TokenSource.ACCEPTED) for i in ids)
    stats = Stats(
        rounds=rounds,
        drafted=4,
        accepted=1,
        drafted_per_position=(1, 1, 1, 1),
        accepted_per_position=(1, 0, 0, 0),
        resampled=1,
        bonus=0,
        target_only=0,
        expected_accepted=1.0,
        refused=0,
        proposal_bytes=10,
        time=TimeSplit(total=2.0, first_token=0.5),
        committed=len(tokens),
    )
    return Completion(
        text="".join(token.text for token in tokens),
        tokens=tokens,
        finish_reason="stop",
        usage=Usage(3, len(tokens)),
        stats=stats,
        lossless=lossless,
        notes=("a note",),
        prompt_ids=(7,),
        request_key=bytes(32),
        gamma=4,
        target_model="big",
        drafter="small",
        weights_version=0,
    )


def test_help_is_there_for_all():
    done = _run("--help")
    assert done.returncode == 0
    for name in ("up", "generate", "chat", "doctor", "prepare", "demo"):
        assert name in done.stdout
        assert _run(name, "--help").returncode == 0


def test_version():
    assert _run("--version").stdout.strip() == draftproof.__version__


@pytest.mark.parametrize(
    "arguments",
    [
        ("generate",),
        ("nonsense",),
        ("generate", "x", "--nonsense"),
        ("up", "--port", "70000"),
        ("generate", "x", "--seed", "a"),
    ],
)
def test_wrong_calls_exit_with_2(arguments):
    assert _run(*arguments).returncode == 2


def test_wrong_values_exit_with_2_and_name_the_field():
    done = _run("generate", "x", "--temperature", "-1")
    assert done.returncode == 2
    assert done.stderr.startswith("error: temperature must be")
    assert "Traceback" not in done.stderr


def test_nobody_there_exits_with_1_and_says_what_to_do():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        done = _run("generate", "x", "--timeout", "1", DRAFTPROOF_ADDRESS=f"127.0.0.1:{taken.getsockname()[1]}")
    assert done.returncode == 1
    assert "draftproof up" in done.stderr
    assert [line.split()[0] for line in done.stderr.strip().splitlines()] == ["waiting", "error:", "is"]


def test_a_taken_port_is_one_clear_line(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = _run("up", "--port", str(port), "--model", "/nowhere")
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert f"--port: port {port} on 127.0.0.1 can't be used" in line
    assert "give another" in line


def test_defaults_are_the_sdks():
    assert using.DEFAULT_ADDRESS == client.DEFAULT_ADDRESS
    assert options.Connection(address="x").timeout == client.DEFAULT_TIMEOUT


def test_zero_is_a_setting():
    fields = options.sampling_fields(temperature=0.0, gamma=0, seed=0, top_k=None, stop=[], ignore_eos=False)
    assert fields == {"temperature": 0.0, "gamma": 0, "seed": 0}
    assert options.sampling_fields(logit_bias=["3=-1.5", "4=2"]) == {"logit_bias": {3: -1.5, 4: 2.0}}
    with pytest.raises(errors.InvalidArgumentError, match="ID=VALUE"):
        options.sampling_fields(logit_bias=["3:1"])


def test_errors_and_exit_codes(capsys):
    report.show_error(errors.UnavailableError("nobody\nthere"))
    assert capsys.readouterr().err.splitlines()[0] == "error: nobody there"
    assert report.exit_code(errors.ConfigError("port", "is odd")) == 2
    assert report.exit_code(errors.InvalidArgumentError("x")) == 2
    assert report.exit_code(errors.UnavailableError("x")) == 1


def test_a_require_free_port_is_free():
    health.require_free("127.0.0.1", 0, "--port")
    with pytest.raises(errors.ConfigError, match="isn't an address"):
        health.require_free("no.such.host.invalid", 1, "--port")


def test_summary():
    lines = "\n".join(line.plain for line in render.summary(_completion(lossless=False)))
    assert "acceptance 25.0 % (1 of 4 proposals; by position 100 0 0 0)" in lines
    assert "1 target steps, 2.00 tokens each" in lines
    assert "2 tokens in 2.00 s (1.0 tokens/s), first after 0.50 s" in lines
    assert "note: a note" in lines
    assert "not lossless" in lines


def test_every_source_has_a_colour_of_its_own():
    assert len(set(render.STYLES.values())) == len(TokenSource)
    assert all(source.value in render.legend().plain for source in TokenSource)


def test_command_lines_leave_defaults_to_the_orchestrator():
    service = LocalCluster(token="secret", tls_cert=None, slots=2, insecure=True).service()
    assert service.command[2:] == [
        *("orchestrator", "--ray-address", "local", "--targets", "1", "--drafts", "1", "--slots", "2"),
        *("--host", "127.0.0.1", "--port", "7500", "--log-format", "json", "--insecure"),
    ]
    assert "secret" not in " ".join(service.command)
    assert service.environment == {"DRAFTPROOF_ORCHESTRATOR_TOKEN": "secret"}


def test_progress_is_complete_when_as_many_workers_are_ready_as_are_wanted():
    progress = Progress(targets=2, drafts=1)

    def ready(worker: str, state: str = "ready") -> bool:
        progress.take({"event": "worker", "worker": worker, "state": state})
        return progress.is_complete("")

    assert not ready("target-0")
    assert not ready("draft-0")
    assert ready("target-1")
    assert not ready("target-0", "suspect")
    assert ready("target-0")


@pytest.mark.parametrize(
    "record",
    [
        {"event": "worker failed to start", "worker": "target-0", "problem": "no such model"},
        {"event": "draft and target don't fit", "worker": "draft-0", "problem": "no such model"},
    ],
)
def test_progress_ends_with_what_will_not_get_better(record: dict[str, str]):
    progress = Progress(targets=1, drafts=1)
    progress.take(record)
    with pytest.raises(ServiceError, match="no such model"):
        progress.is_complete("")


def _info(**changes: object) -> ServerInfo:
    fingerprint = Fingerprint(bytes(32), 50_000, 1, "big", bytes(32), 0)
    fields: dict[str, object] = {
        "role": "draft",
        "version": "0.1.0",
        "target": fingerprint,
        "draft": fingerprint,
        "drafter": "model",
        "max_context": 512,
        "slots": 8,
        "max_gamma": 16,
        "default_gamma": 4,
        "max_message_bytes": 2**26,
        "sessions": 0,
        "chat_template": True,
        "targets": (),
    }
    return ServerInfo(**{**fields, **changes})


def _levels(info: ServerInfo) -> dict[str, Level]:
    return {finding.what: finding.level for finding in doctor.described(info)}


def test_doctor_has_no_complaints_about_a_good_server():
    assert set(_levels(_info()).values()) == {Level.OK}


@pytest.mark.parametrize(
    ("changes", "what", "level"),
    [
        ({"version": "0.0.9"}, "release", Level.WARN),
        ({"role": "target", "drafter": "", "draft": None}, "drafter", Level.WARN),
        ({"chat_template": False}, "chat template", Level.WARN),
        ({"max_message_bytes": 2**20}, "message limit", Level.FAIL),
        ({"max_message_bytes": 2**22}, "message limit", Level.WARN),
        ({"draft": Fingerprint(b"x" * 32, 50_000, 1, "small", b"", 0)}, "fingerprints", Level.FAIL),
        ({"draft": Fingerprint(bytes(32), 50_001, 1, "small", b"", 0)}, "fingerprints", Level.FAIL),
        ({"draft": Fingerprint(bytes(32), 50_000, 2, "small", b"", 0)}, "fingerprints", Level.FAIL),
    ],
)
def test_doctor_finds_what_is_wrong_and_says_what_to_do(changes, what, level):
    assert _levels(_info(**changes))[what] is level
    assert next(finding for finding in doctor.described(_info(**changes)) if finding.what == what).mend


def test_demo_is_honest_about_speed():
    fast, slow = Run(_completion(), 1.0), Run(_completion(), 2.0)
    assert demo.verdict(fast, slow, greedy=True)[0] == "2.00 times as fast as the target alone."
    assert demo.verdict(slow, fast, greedy=True)[0].startswith("Slower than the target alone, at 0.50 times")
    assert demo.verdict(fast, Run(_completion(), 1.01), greedy=True)[0].startswith("As fast as")


def test_demo_says_whether_the_texts_are_the_same():
    def said(one: Completion, other: Completion, greedy: bool = True) -> str:
        return demo.verdict(Run(one, 1.0), Run(other, 1.0), greedy=greedy)[1]

    assert "Token for token" in said(_completion(), _completion())
    assert "part at token 1" in said(_completion((1, 2)), _completion((1, 3)))
    assert "part at token 2" in said(_completion((1, 2)), _completion((1, 2, 3)))
    assert "samples of one law" in said(_completion(), _completion((5,)), greedy=False)
    assert "Not lossless" in said(_completion(lossless=False), _completion())


def test_the_demo_prompt_is_there():
    assert running.DEMO_PROMPT


def test_a_silent_server_is_named_once_a_cause(capsys):
    waiting = options.Waiting("127.0.0.1:9")
    for problem in ("connection refused", "connection refused", "draining"):
        waiting(errors.UnavailableError(problem), 9.6)
    said = capsys.readouterr()
    assert not said.out
    assert said.err.splitlines() == [
        "waiting for 127.0.0.1:9: connection refused; trying for another 10 s",
        "waiting for 127.0.0.1:9: draining; trying for another 10 s",
    ]


def test_generate_does_not_wait_silently():
    done = _run("generate", "hi", "-a", "127.0.0.1:1", "--timeout", "1")
    assert done.returncode == 1
    assert "waiting for 127.0.0.1:1: " in done.stderr
    assert not done.stdout


def test_the_start_of_a_cluster_leaves_traces_in_a_file():
    file = io.StringIO()
    relay = up.Relay(Console(file=file, width=200), False, Progress(targets=1, drafts=0))
    relay("cluster", '{"event": "worker", "worker": "target-0", "state": "ready", "level": "info"}')
    relay("cluster", '{"event": "probe", "level": "info"}')
    assert file.getvalue() == "target-0 ready\n"
    relay.running = True
    relay("cluster", '{"event": "worker", "worker": "target-0", "state": "suspect", "level": "info"}')
    assert file.getvalue() == "target-0 ready\n"


def test_the_encoding_reaches_the_orchestrator():
    command = LocalCluster(q_encoding="dense").service().command
    assert command[command.index("--q-encoding") + 1] == "dense"
    for name in ("up", "demo"):
        assert "--q-encoding" in _run(name, "--help").stdout
