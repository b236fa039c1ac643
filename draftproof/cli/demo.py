"""`draftproof demo`: one prompt, once with speculation and once by the target alone, side by side."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from draftproof.cli import render
from draftproof.cli.cluster import LocalCluster, Progress
from draftproof.cli.generate import conversation
from draftproof.cli.stack import Stack
from draftproof.cli.up import Relay, start
from draftproof.client import Client, Completion

_ALIKE = 0.03
"""Speeds closer than this are called equal: timing alone moves more."""


@dataclass(frozen=True, slots=True)
class Run:
    """One way to the answer.

    Attributes:
        seconds: as the caller waited.
    """

    completion: Completion
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Tokens the caller got per second waited."""
        return self.completion.usage.completion_tokens / self.seconds


def run(cluster: LocalCluster, *, prompt: str, sampling: dict[str, Any], wait: float, logs: bool) -> None:
    """Prepares, starts, answers, compares, stops.

    Raises:
        DraftproofError: something didn't start or a request failed.
        Interrupted: the user asked to stop.
    """
    console = Console(highlight=False)
    cluster.prepare_model()
    relay = Relay(console, logs, Progress(cluster.targets, cluster.drafts))
    with Stack(relay) as stack:
        address = start(stack, cluster, relay, wait, console)
        with Client(address) as client:
            compare(console, client, prompt, sampling)


def compare(console: Console, client: Client, prompt: str, sampling: dict[str, Any]) -> None:
    """Answers the prompt both ways through the same front door and prints what each cost."""
    info = client.info()
    console.print(
        f"target {info.target.model}, drafter {info.drafter}: processes of their own behind {client.address}",
        style="dim",
        soft_wrap=True,
    )
    with console.status("warming up"):
        for gamma in (None, 0):
            client.generate("Warm up.", max_tokens=8, temperature=0.0, gamma=gamma)
    call = {"messages": conversation(None, prompt)} if info.chat_template else {"prompt": prompt}
    console.print(f"\n> {prompt}", style="bold", markup=False)
    speculative = _timed(client, {**call, **sampling}, console, show=True)
    console.print()
    if console.is_terminal:
        console.print(render.legend())
    with console.status("the same by the target alone"):
        alone = _timed(client, {**call, **sampling, "gamma": 0}, console, show=False)
    console.print()
    console.print(table(speculative, alone))
    console.print(render.acceptance(speculative.completion.stats))
    for sentence in verdict(speculative, alone, greedy=sampling.get("temperature") == 0):
        console.print(sentence)
    for note in speculative.completion.notes:
        console.print(f"note: {note}", style="yellow", markup=False)


def _timed(client: Client, call: dict[str, Any], console: Console, *, show: bool) -> Run:
    show_chunk = render.printer(console, plain=False)
    begin = time.perf_counter()
    with client.stream(**call) as stream:
        for chunk in stream:
            if show:
                show_chunk(chunk)
        return Run(stream.completion, time.perf_counter() - begin)


def table(speculative: Run, alone: Run) -> Table:
    """Both runs, figure by figure."""
    form = Table(box=None, pad_edge=False, header_style="bold")
    form.add_column("")
    form.add_column("with the draft", justify="right")
    form.add_column("target alone", justify="right")
    runs = (speculative, alone)
    form.add_row("tokens", *(str(run.completion.usage.completion_tokens) for run in runs))
    form.add_row("target steps", *(str(run.completion.stats.rounds) for run in runs))
    form.add_row("tokens per target step", *(f"{run.completion.stats.tokens_per_target_step or 0:.2f}" for run in runs))
    form.add_row("seconds", *(f"{run.seconds:.2f}" for run in runs))
    form.add_row("tokens per second", *(f"{run.tokens_per_second:.1f}" for run in runs))
    return form


def verdict(speculative: Run, alone: Run, *, greedy: bool) -> list[str]:
    """What the figures mean, also where they don't flatter."""
    ratio = speculative.tokens_per_second / alone.tokens_per_second
    if abs(ratio - 1) < _ALIKE:
        speed = "As fast as the target alone: here the proposals save about what they cost."
    elif ratio > 1:
        speed = f"{ratio:.2f} times as fast as the target alone."
    else:
        speed = (
            f"Slower than the target alone, at {ratio:.2f} times its speed: on this prompt and machine the proposals"
            " cost more than they save."
        )
    return [speed, *_sameness(speculative.completion, alone.completion, greedy)]


def _sameness(one: Completion, other: Completion, greedy: bool) -> list[str]:
    if not one.lossless:
        return ["Not lossless: something bent the output law; see the service logs (--logs)."]
    if not greedy:
        return ["Two samples of one law: the texts differ as two runs of the target alone would."]
    if one.token_ids == other.token_ids:
        return ["Token for token the same text both ways."]
    pairs = zip(one.token_ids, other.token_ids, strict=False)
    first = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one.tokens), len(other.tokens)))
    return [
        f"The texts part at token {first}: greedy decoding of two nearly equal logits, which differ in their last bits"
        " with the shape of the batch. --dtype float32 makes that rare."
    ]
