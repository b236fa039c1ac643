"""The commands against a scripted server."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console
from typer.testing import CliRunner

from draftproof import errors
from draftproof.cli import chat, doctor
from draftproof.cli.main import cli, main
from draftproof.cli.options import Connection


@pytest.fixture
def command(server, monkeypatch):
    """Runs a command against the server, as a terminal without colours would."""
    monkeypatch.setenv("DRAFTPROOF_ADDRESS", server.address)
    return lambda *arguments: CliRunner().invoke(cli, list(arguments))


def test_generate_writes_the_text_to_stdout_and_the_rest_to_stderr(server, answers, command):
    server.script = [answers["whole"]((1, 2), (3,))]
    result = command("generate", "hi", "--temperature", "0", "--gamma", "0", "--stop", "\n", "--max-tokens", "9")
    assert result.exit_code == 0
    assert result.stdout == "<1><2><3>\n"
    assert "3 tokens" in result.stderr
    (request,) = server.requests
    assert request.text == "hi"
    assert request.sampling.temperature == 0
    assert request.sampling.HasField("gamma")
    assert list(request.sampling.stop) == ["\n"]
    assert request.sampling.max_tokens == 9


def test_generate_as_a_chat(server, answers, command):
    server.script = [answers["whole"]((1,))]
    command("generate", "hi", "--chat")
    command("generate", "hi", "--system", "be brief")
    roles = [[message.role for message in request.chat.messages] for request in server.requests]
    assert roles == [["user"], ["system", "user"]]


def test_generate_from_standard_input(server, answers, monkeypatch):
    server.script = [answers["whole"]((1,))]
    CliRunner().invoke(cli, ["generate", "-", "-a", server.address], input="from a pipe")
    assert server.requests[0].text == "from a pipe"


def test_generate_json(server, answers, command):
    server.script = [answers["whole"]((1, 2), (3,))]
    result = command("generate", "hi", "--json", "--trace", "full", "--logprobs", "2")
    form = json.loads(result.stdout)
    assert form["text"] == "<1><2><3>"
    assert [token["source"] for token in form["tokens"]] == ["bonus"] * 3
    assert form["finish_reason"] == "stop"
    assert form["stats"]["acceptance_rate"] is None
    assert form["request_key"] == bytes(range(32)).hex()
    assert server.requests[0].HasField("trace")
    assert server.requests[0].sampling.logprobs == 2


def test_colours_tell_sources_apart(server, answers, monkeypatch):
    server.script = [answers["whole"]((1,))]
    monkeypatch.setenv("FORCE_COLOR", "1")
    result = CliRunner().invoke(cli, ["generate", "hi", "-a", server.address], color=True)
    assert "\x1b[1;36m<1>" in result.stdout
    assert "resampled" in result.stderr
    server.requests.clear()
    assert "\x1b" not in CliRunner().invoke(cli, ["generate", "hi", "--plain", "-a", server.address]).stdout


def test_an_error_of_the_server_ends_in_two_lines(server, answers, monkeypatch, capsys):
    server.script = [answers["refusing"](errors.UnauthenticatedError("wrong token"))]
    monkeypatch.setattr("sys.argv", ["draftproof", "generate", "hi", "-a", server.address])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 1
    assert capsys.readouterr().err.splitlines() == [
        "error: wrong token",
        "       give the server's token with --token or DRAFTPROOF_TOKEN",
    ]


def test_chat_keeps_the_conversation(server, answers, capsys):
    server.script = [answers["whole"]((1, 2))]
    lines = iter(["hi", "", "/stats", "/nonsense", "again", "/reset", "anew", "/exit", "never"])
    chat.run(
        Connection(address=server.address),
        system="be brief",
        sampling={},
        plain=True,
        read=lambda prompt: next(lines),
    )
    said = [[(m.role, m.content) for m in request.chat.messages] for request in server.requests]
    system, hi, answer = ("system", "be brief"), ("user", "hi"), ("assistant", "<1><2>")
    assert said == [[system, hi], [system, hi, answer, ("user", "again")], [system, ("user", "anew")]]
    out, err = capsys.readouterr()
    assert out == "<1><2>\n" * 3
    assert "2 tokens" in err
    assert "/reset forgets" in err


def test_chat_survives_an_error_and_forgets_the_question(server, answers, capsys):
    server.script = [answers["refusing"](errors.NumericsError("NaN")), answers["whole"]((1,))]
    lines = iter(["first", "second"])

    def read(prompt: str) -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    chat.run(Connection(address=server.address), system=None, sampling={}, plain=True, read=read)
    assert [len(request.chat.messages) for request in server.requests] == [1, 1]
    assert "error: NaN" in capsys.readouterr().err


def _doctor(address: str) -> tuple[str, int]:
    text = io.StringIO()
    try:
        doctor.run(
            Connection(address=address),
            model=None,
            draft_model=None,
            console=Console(file=text, width=200, color_system=None),
        )
    except SystemExit as end:
        return text.getvalue(), int(end.code or 0)
    return text.getvalue(), 0


def test_doctor_without_health(server):
    text, code = _doctor(server.address)
    assert code == 1
    assert "front door" in text
    assert "draftproof up" in text


def test_doctor_with_a_server(server, answers, monkeypatch):
    monkeypatch.setattr("draftproof.cli.health.check", lambda address, **options: True)
    server.script = [answers["whole"]((1, 2))]
    text, code = _doctor(server.address)
    assert code == 0
    assert "lossless" in text
    assert "can't be seen from here" in text


def test_doctor_with_a_server_that_is_not_well(server, answers, monkeypatch):
    monkeypatch.setattr("draftproof.cli.health.check", lambda address, **options: False)
    text, code = _doctor(server.address)
    assert code == 1
    assert "NOT_SERVING" in text
