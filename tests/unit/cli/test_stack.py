"""Child processes: started, watched, told apart when they fail, and always stopped, the last one first."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import pytest

from draftproof.cli import report
from draftproof.cli.stack import Interrupted, Service, ServiceError, Stack, parse

_SERVING = """
import json, signal, sys, time
def leave(*_):
    print(json.dumps({{"event": "leaving", "name": "{name}"}}), file=sys.stderr)
    sys.exit(0)
signal.signal(signal.SIGTERM, {handler})
print("a line that is no JSON", file=sys.stderr)
print(json.dumps({{"event": "serving", "address": "127.0.0.1:{port}"}}), file=sys.stderr)
time.sleep(60)
"""


def _service(name: str = "target", port: int = 1, handler: str = "leave") -> Service:
    return Service(name, [sys.executable, "-c", _SERVING.format(name=name, port=port, handler=handler)])


def _failing(words: str) -> Service:
    return Service("draft", [sys.executable, "-c", f"import sys; print({words!r}, file=sys.stderr); sys.exit(3)"])


def _yes(address: str) -> bool:
    return True


def test_starts_in_order_and_stops_the_last_one_first():
    seen: list[tuple[str, str]] = []
    with Stack(lambda name, line: seen.append((name, line))) as stack:
        target = stack.start(_service("target", 11))
        assert stack.wait_serving(target, 20, _yes) == "127.0.0.1:11"
        draft = stack.start(_service("draft", 12))
        assert stack.wait_serving(draft, 20, _yes) == "127.0.0.1:12"
        assert target.is_alive
        assert draft.is_alive
    assert not target.is_alive
    assert not draft.is_alive
    assert [name for name, line in seen if "leaving" in line] == ["draft", "target"]


def test_health_is_waited_for():
    asked: list[str] = []
    with Stack() as stack:
        child = stack.start(_service())
        stack.wait_serving(child, 20, lambda address: bool(asked.append(address)) or len(asked) == 3)
    assert asked == ["127.0.0.1:1"] * 3


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("Traceback: long\nerror: port 7500 is taken\nbye", "port 7500 is taken"),
        ("a warning\nlast words", "last words"),
    ],
)
def test_a_service_that_stops_says_why(words, reason):
    with Stack() as stack:
        child = stack.start(_failing(words))
        with pytest.raises(ServiceError, match=f"the draft service stopped with exit code 3: {reason}"):
            stack.wait_serving(child, 20, _yes)


def test_a_service_that_stops_later_is_noticed():
    with Stack() as stack:
        child = stack.start(_service())
        stack.wait_serving(child, 20, _yes)
        child.process.kill()
        with pytest.raises(ServiceError, match="exit code -9"):
            stack.watch()


def test_a_service_that_never_gets_ready():
    with Stack() as stack, pytest.raises(ServiceError, match=r"wasn't ready within 0\.3 s"):
        stack.wait_serving(stack.start(_service()), 0.3, lambda address: False)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_starting_is_in_the_exit_code(number, code, capsys):
    with Stack() as stack:
        child = stack.start(_service())
        threading.Timer(0.2, os.kill, (os.getpid(), number)).start()
        with pytest.raises(Interrupted) as caught:
            stack.wait_serving(child, 20, lambda address: False)
    assert not child.is_alive
    assert report.exit_code(caught.value) == code
    report.show_error(caught.value)
    assert "error" not in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_watch_and_the_children(number):
    before = signal.getsignal(number)
    with Stack() as stack:
        child = stack.start(_service())
        stack.wait_serving(child, 20, _yes)
        threading.Timer(0.2, os.kill, (os.getpid(), number)).start()
        stack.watch()
        assert child.is_alive
        with pytest.raises(Interrupted):
            stack.start(_service())
    assert child.process.returncode == 0
    assert signal.getsignal(number) is before


def test_a_child_that_does_not_listen_is_killed():
    with Stack(patience=0.3) as stack:
        child = stack.start(_service(handler="signal.SIG_IGN"))
        stack.wait_serving(child, 20, _yes)
    assert child.process.returncode == -signal.SIGKILL


def test_a_second_signal_does_not_wait():
    begin = time.monotonic()
    with Stack(patience=30) as stack:
        child = stack.start(_service(handler="signal.SIG_IGN"))
        stack.wait_serving(child, 20, _yes)
        for delay in (0.1, 0.6):
            threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT)).start()
        stack.watch()
    assert child.process.returncode == -signal.SIGKILL
    assert time.monotonic() - begin < 20


def test_a_childs_environment():
    program = "import os, json; print(json.dumps({'event': 'serving', 'address': os.environ['SECRET']}))"
    with Stack() as stack:
        child = stack.start(
            Service("draft", [sys.executable, "-c", program + "; import time; time.sleep(60)"], {"SECRET": "s"})
        )
        assert stack.wait_serving(child, 20, _yes) == "s"


@pytest.mark.parametrize("line", ["", "text", "[1]", "3", '"x"', "{"])
def test_lines_that_are_no_records(line):
    assert parse(line) == {}
