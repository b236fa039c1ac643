"""`draftproof chat`: a conversation. Ctrl-C stops an answer, Ctrl-D leaves."""

from __future__ import annotations

import contextlib
from typing import Any

from rich.console import Console

from draftproof.cli import render, report
from draftproof.cli.generate import conversation
from draftproof.cli.options import Connection
from draftproof.client import Client
from draftproof.errors import DraftproofError

HELP = (
    "/reset forgets the conversation, /stats tells how the last answer came about, /exit leaves, Ctrl-C stops an answer"
)


class Conversation:
    """Messages so far, and one turn of them."""

    def __init__(self, client: Client, system: str | None, sampling: dict[str, Any], plain: bool) -> None:
        self._client = client
        self._system = system
        self._sampling = sampling
        self._out, self._err = render.consoles()
        self._show = render.printer(self._out, plain)
        self._messages: list[dict[str, str]] = []
        self.stats: list[Any] = []
        self.reset()

    def reset(self) -> None:
        """Forgets everything but the system message."""
        self._messages = [] if self._system is None else conversation(self._system, "")[:1]
        self.stats = []

    def ask(self, text: str) -> None:
        """One question and its streamed answer, which becomes part of the conversation, also when cut short.

        Raises:
            DraftproofError: it failed; the question is forgotten.
        """
        messages = [*self._messages, {"role": "user", "content": text}]
        answer = ""
        with self._client.stream(messages=messages, **self._sampling) as stream:
            try:
                for chunk in stream:
                    answer += chunk.text
                    self._show(chunk)
                self.stats = render.summary(stream.completion)
            except KeyboardInterrupt:
                self.stats = []
                self._err.print(" [dim]stopped[/dim]", end="")
        print(flush=True)
        self._messages = [*messages, {"role": "assistant", "content": answer}]


def run(
    connection: Connection, *, system: str | None, sampling: dict[str, Any], plain: bool, read: Any = input
) -> None:
    """Talks until the end of input.

    Raises:
        DraftproofError: the server can't be reached.
    """
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - makes input() edit lines and keep a history

    out, err = render.consoles()
    with connection.client() as client:
        info = client.info()
        _greet(err, connection.address, info.target.model, info.drafter, out.is_terminal and not plain)
        talk = Conversation(client, system, sampling, plain)
        while (text := _line(read, "\n> " if out.is_terminal else "")) is not None:
            if text in ("/exit", "/quit"):
                return
            if text == "/reset":
                talk.reset()
            elif text == "/stats":
                for line in talk.stats:
                    err.print(line, soft_wrap=True)
            elif text.startswith("/"):
                err.print(HELP)
            elif text:
                try:
                    talk.ask(text)
                except DraftproofError as error:
                    print(flush=True)
                    report.show_error(error)


def _greet(console: Console, address: str, model: str, drafter: str, legend: bool) -> None:
    console.print(f"{model} at {address}, drafter {drafter or 'none'}. {HELP}", style="dim", soft_wrap=True)
    if legend:
        console.print(render.legend())


def _line(read: Any, prompt: str) -> str | None:
    """The next line, None at the end of input or on Ctrl-C at the prompt."""
    try:
        return str(read(prompt)).strip()
    except (EOFError, KeyboardInterrupt):
        return None
