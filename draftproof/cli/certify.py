"""`draftproof certify`: asks for p, plans, samples, judges, reports."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from draftproof.cli import certify_cluster as cluster
from draftproof.cli import report as errors
from draftproof.cli.certify_cases import PROMPT, SETTINGS, Case, biases, cases, settings
from draftproof.cli.options import Connection
from draftproof.client import AsyncClient, ServerInfo
from draftproof.errors import ConfigError, DraftproofError

RULES = ("block", "token", "coupled")
FAILED, NOT_RUN = 1, 2
MAX_STREAMS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to certify and how hard; fields as the command's options."""

    rules: tuple[str, ...] = RULES
    lenience: float | None = None
    settings: tuple[str, ...] = ()
    every: bool = False
    prompts: tuple[str, ...] = ()
    gamma: int = 2
    tv: float = 0.05
    power: float = 0.99
    alpha: float = 0.001
    samples: int | None = None
    prefixes: int = 24
    cells: int = 64
    streams: int | None = None
    numerics: str | None = None


def run(connection: Connection, wanted: Wanted, *, out: Path | None, html: Path | None, as_json: bool) -> None:
    """Runs it and leaves with the exit code.

    Raises:
        typer.Exit: 1 where a test failed, 2 where it could not run or no proposal was ever tested.
    """
    try:
        _need_scipy()
        found = asyncio.run(certify(connection, wanted, Console(stderr=True, highlight=False)))
        _report(found, out, html, as_json)
    except DraftproofError as error:
        errors.show_error(error)
        raise typer.Exit(NOT_RUN) from error
    if not found["passed"]:
        raise typer.Exit(FAILED if found["verdict"] == "failed" else NOT_RUN)


def _need_scipy() -> None:
    try:
        import scipy  # noqa: F401
    except ImportError as error:
        raise ConfigError("certify", "needs scipy: pip install 'draftproof[certify]'") from error


async def certify(connection: Connection, wanted: Wanted, console: Console) -> dict[str, Any]:
    """Everything but the report.

    Returns:
        The report as one JSON object.

    Raises:
        DraftproofError: the cluster refused, failed or isn't there, or a setting is wrong.
    """
    from draftproof.certify.verdict import judge, plan
    from draftproof.cli.certify_report import record

    chosen = settings(wanted.settings)
    texts = wanted.prompts or (PROMPT,)
    made = cases(
        chosen,
        wanted.rules,
        lenience=wanted.lenience,
        gamma=wanted.gamma,
        prompts=len(texts),
        every=wanted.every,
    )
    begun = datetime.now(UTC)
    async with connection.async_client() as client:
        info = await client.info()
        prompts = [await _ids(client, text) for text in texts]
        made = [await _with_biases(client, case, prompts[case.prompt]) for case in made]
        laws, wobbles = await _laws(client, made, prompts, wanted, console)
        planned = plan(
            {case.name: laws[case.law].masses for case in made},
            tv=wanted.tv,
            alpha=wanted.alpha,
            power=wanted.power,
            samples=wanted.samples,
        )
        _announce(console, planned, wanted)
        streams = wanted.streams or min(MAX_STREAMS, max(1, info.slots))
        tallies, clock = [], time.monotonic()
        with _progress(console) as bar:
            task = bar.add_task("sampling", total=sum(one.total for one in planned))
            for case, one in zip(made, planned, strict=True):
                bar.update(task, description=case.name)
                law, told = laws[case.law], lambda: bar.advance(task)
                args = (client, case, prompts[case.prompt], law, one.total, streams, told)
                tallies.append(await cluster.sample(*args))
        seconds = time.monotonic() - clock
        judged = judge(planned, [tally.counts for tally in tallies], wanted.alpha)
        numerics = None
        if wanted.numerics is not None:
            from draftproof.cli import certify_numerics

            numerics = await certify_numerics.measure(client, info, prompts[0], wanted.numerics, console)
    facts = {
        "endpoint": connection.address,
        "when": begun.isoformat(timespec="seconds"),
        "prompts": list(texts),
        "gamma": wanted.gamma,
        "tv": wanted.tv,
        "power": wanted.power,
        "alpha": wanted.alpha,
        "streams": streams,
        "seconds": round(seconds, 1),
        "server": _server(info),
        "wobble": {f"{name}, prompt {number + 1}": moved for (name, number), moved in wobbles.items()},
    }
    return record(facts, made, judged, tallies, numerics)


async def _ids(client: AsyncClient, text: str) -> tuple[int, ...]:
    return (await client.next_token(text)).prompt_ids


async def _with_biases(client: AsyncClient, case: Case, prompt: Sequence[int]) -> Case:
    """The preset of biases gets its tokens from p; other cases stay as they are."""
    if case.setting not in SETTINGS or "logit_bias" not in SETTINGS[case.setting]:
        return case
    p = (await client.next_token(token_ids=prompt)).p
    return replace(case, sampling=replace(case.sampling, logit_bias=biases(p)))


async def _laws(
    client: AsyncClient, made: Sequence[Case], prompts: Sequence[Sequence[int]], wanted: Wanted, console: Console
) -> tuple[dict[tuple[str, int], Any], dict[tuple[str, int], float]]:
    laws: dict[tuple[str, int], Any] = {}
    wobbles: dict[tuple[str, int], float] = {}
    distinct = {case.law: case for case in reversed(made)}
    with _progress(console) as bar:
        task = bar.add_task("asking for p", total=len(distinct) * wanted.prefixes)
        for key, case in reversed(distinct.items()):
            prompt = prompts[case.prompt]
            laws[key] = await cluster.grow(
                client, case, prompt, wanted.prefixes, wanted.cells, lambda: bar.advance(task)
            )
            wobbles[key] = await cluster.wobble(client, case, prompt)
    return laws, wobbles


def _announce(console: Console, planned: Sequence[Any], wanted: Wanted) -> None:
    """What the tests will find, said before they begin."""
    total = sum(one.total for one in planned)
    console.print(f"{len(planned)} tests, {total:,} continuations of {wanted.gamma + 1} tokens", style="bold")
    for one in planned:
        console.print(
            f"  {one.name}: {one.total:,} continuations, {one.cells} cells; finds TV ≥ {one.tv:g} with probability"
            f" ≥ {one.power:.4f}, TV ≥ {one.findable:.3f} with {wanted.power:g}",
            soft_wrap=True,
        )


@contextmanager
def _progress(console: Console) -> Iterator[Progress]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield bar


def _server(info: ServerInfo) -> dict[str, Any]:
    return {
        "role": info.role,
        "version": info.version,
        "target": info.target.model,
        "target_weights_sha256": info.target.weights_sha256.hex(),
        "weights_version": info.target.weights_version,
        "vocab_size": info.target.vocab_size,
        "drafter": info.drafter,
        "draft": info.draft.model if info.draft else None,
    }


def _report(found: dict[str, Any], out: Path | None, page: Path | None, as_json: bool) -> None:
    from draftproof.cli.certify_html import html
    from draftproof.cli.certify_report import draw, markdown, show

    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        pictures = draw(found, out)
        (out / "report.json").write_text(json.dumps(found, indent=2) + "\n")
        (out / "report.md").write_text(markdown(found, pictures))
    if page is not None:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(html(found))
    if as_json:
        print(json.dumps(found))
    else:
        show(Console(highlight=False), found)
        if out is not None:
            print(out / "report.md")
        if page is not None:
            print(page)
