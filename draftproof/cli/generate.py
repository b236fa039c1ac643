"""`draftproof generate`: one continuation, streamed."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Sequence
from enum import Enum
from typing import Any

from rich.console import Console

from draftproof.cli import render
from draftproof.cli.options import Connection
from draftproof.client import Completion

_RATES = ("acceptance_rate", "tokens_per_target_step")


def run(
    connection: Connection,
    prompt: str,
    *,
    chat: bool,
    system: str | None,
    sampling: dict[str, Any],
    trace: int | str | None,
    plain: bool,
    as_json: bool,
) -> None:
    """Generates and prints.

    Raises:
        DraftproofError: it failed.
    """
    text = sys.stdin.read() if prompt == "-" else prompt
    call: dict[str, Any] = {**sampling, "trace": trace}
    if chat or system is not None:
        call["messages"] = conversation(system, text)
    else:
        call["prompt"] = text
    with connection.client() as client:
        if as_json:
            print(json.dumps(to_json(client.generate(**call)), ensure_ascii=False, allow_nan=False))
            return
        out, err = render.consoles()
        show = render.printer(out, plain)
        with client.stream(**call) as stream:
            for chunk in stream:
                show(chunk)
        print(flush=True)
        say(err, stream.completion, legend=not plain and out.is_terminal)


def conversation(system: str | None, text: str) -> list[dict[str, str]]:
    """Messages of a first turn."""
    first = [] if system is None else [{"role": "system", "content": system}]
    return [*first, {"role": "user", "content": text}]


def say(console: Console, completion: Completion, *, legend: bool) -> None:
    """Prints the summary of a generation."""
    console.print()
    for line in ([render.legend()] if legend else []) + render.summary(completion):
        console.print(line, soft_wrap=True)


def to_json(completion: Completion) -> dict[str, Any]:
    """The completion as JSON values: bytes as hex, numbers that JSON lacks as null."""
    form = {name: value for name, value in _fields(completion).items() if name != "prompt_ids"}
    form["stats"] |= {name: getattr(completion.stats, name) for name in _RATES}
    return form


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: _value(getattr(value, field.name)) for field in dataclasses.fields(value)}


def _value(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return _fields(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_value(item) for item in value]
    return value
