"""`draftproof doctor`: looks at everything a request needs and says what to mend."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from rich.console import Console
from rich.table import Table
from rich.text import Text

from draftproof.cli import health
from draftproof.cli.options import Connection
from draftproof.cli.report import FAILURE
from draftproof.client import Fingerprint, ServerInfo
from draftproof.errors import ConfigError, DraftproofError, RequestError
from draftproof.rpc.options import RpcLimits
from draftproof.rpc.security import Address
from draftproof.version import VERSION


class Level(StrEnum):
    """How a check went."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


_STYLES = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One check.

    Attributes:
        what: what was looked at.
        found: what it is like.
        mend: what to do about it, empty where nothing.
    """

    level: Level
    what: str
    found: str
    mend: str = ""


def run(connection: Connection, *, model: str | None, draft_model: str | None, console: Console | None = None) -> None:
    """Runs all checks, prints a table, exits with 1 where one failed."""
    console = console or Console(highlight=False)
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    findings: list[Finding] = []
    with console.status("looking"):
        for finding in examine(connection, model, draft_model):
            findings.append(finding)
            text = Text(finding.found)
            if finding.mend:
                text.append(f"\n→ {finding.mend}", "bold")
            table.add_row(Text(finding.level.value, _STYLES[finding.level]), finding.what, text)
    console.print(table)
    if any(finding.level is Level.FAIL for finding in findings):
        sys.exit(FAILURE)


def examine(connection: Connection, model: str | None, draft_model: str | None) -> Iterator[Finding]:
    """All checks, in the order in which they matter; those that need a server only where one answers."""
    yield embedded_model()
    if model is not None and draft_model is not None:
        yield vocabularies(model, draft_model)
    door = front_door(connection)
    yield door
    if door.level is Level.FAIL:
        yield from free_port(connection.address)
        return
    try:
        with connection.client() as client:
            info = client.info()
    except DraftproofError as error:
        yield Finding(Level.FAIL, "description", error.message, "is this a Draftproof server, and the token right?")
        return
    yield from described(info)
    for address in info.targets:
        yield target(replace(connection, address=address), info)
    yield generation(connection)


def embedded_model() -> Finding:
    """Whether the default model is on this machine."""
    from draftproof.engine.embedded import cache_folder, is_prepared

    if is_prepared():
        return Finding(Level.OK, "embedded model", f"prepared in {cache_folder()}")
    return Finding(
        Level.WARN, "embedded model", "not prepared yet", "run `draftproof prepare` (the first start does it, too)"
    )


def vocabularies(model: str, draft_model: str) -> Finding:
    """Whether two models could work together, from their tokenizers alone."""
    from draftproof.engine.config import ModelConfig
    from draftproof.engine.loading import load_tokenizer
    from draftproof.wire.fingerprint import first_difference, token_digests

    try:
        sides = [load_tokenizer(ModelConfig(model=name)) for name in (model, draft_model)]
    except DraftproofError as error:
        return Finding(Level.FAIL, "tokenizers", error.message, "check --model and --draft-model")
    ours, theirs = ([side.token(i) for i in range(side.vocab_size)] for side in sides)
    different = first_difference(token_digests(ours), token_digests(theirs))
    if different is None:
        return Finding(Level.OK, "tokenizers", f"{model} and {draft_model} share all {len(ours)} tokens")
    first, second = (repr(side[different]) if different < len(side) else "nothing" for side in (ours, theirs))
    return Finding(
        Level.FAIL,
        "tokenizers",
        f"token {different} is {first} in {model} and {second} in {draft_model}",
        "choose a draft of the target's family, or --drafter ngram, which fits every target",
    )


def front_door(connection: Connection) -> Finding:
    """Whether the server answers and is well."""
    try:
        serving = health.check(connection.address, tls=connection.tls_files(), insecure=connection.insecure)
    except RequestError as error:
        return Finding(
            Level.FAIL, "front door", error.message, "start one with `draftproof up`, or name another with --address"
        )
    except ConfigError as error:
        return Finding(Level.FAIL, "front door", error.message, "mend the option")
    if not serving:
        return Finding(
            Level.FAIL,
            "front door",
            f"{connection.address} answers NOT_SERVING: it starts, drains, has no target or is stuck",
            "look at its log; start it again if this stays",
        )
    return Finding(Level.OK, "front door", f"{connection.address} is serving")


def free_port(address: str) -> Iterator[Finding]:
    """Where nobody answers: whether `up` could start there."""
    try:
        where = Address.parse(address)
        if not where.is_loopback:
            return
        health.require_free(where.host, where.port, "--port")
    except ConfigError as error:
        yield Finding(Level.FAIL, "port", error.message, "give `draftproof up` another --port")
    else:
        yield Finding(Level.OK, "port", f"{where.port} is free")


def described(info: ServerInfo) -> Iterator[Finding]:
    """What a server's own description tells."""
    if info.version == VERSION:
        yield Finding(Level.OK, "release", f"{VERSION} here and there")
    else:
        yield Finding(Level.WARN, "release", f"{VERSION} here, {info.version} there", "install the same one")
    if info.drafter:
        yield Finding(Level.OK, "drafter", f"{info.drafter}, gamma {info.default_gamma} (at most {info.max_gamma})")
    elif info.role == "orchestrator":
        yield Finding(
            Level.WARN, "drafter", "no draft is ready: no speculation", "see what `draftproof top` says of the drafts"
        )
    else:
        yield Finding(
            Level.WARN,
            "drafter",
            f"a {info.role} server: no speculation",
            "give the address of the draft server or the orchestrator (port 7500)",
        )
    yield fingerprints(info)
    yield from limits(info)
    if info.chat_template:
        yield Finding(Level.OK, "chat template", "there")
    else:
        yield Finding(
            Level.WARN, "chat template", "the model has none", "`draftproof chat` and messages need an instruct model"
        )
    yield Finding(
        Level.OK, "capacity", f"{info.slots} slots of {info.max_context} tokens, {info.sessions} requests running"
    )


def fingerprints(info: ServerInfo) -> Finding:
    """Whether draft and target speak of the same tokens."""
    if info.draft is None or not info.draft.tokenizer_sha256:
        return Finding(Level.OK, "fingerprints", f"target {info.target.model}; the drafter has no model of its own")
    different = _difference(info.target, info.draft)
    if different:
        return Finding(
            Level.FAIL,
            "fingerprints",
            f"{info.target.model} and {info.draft.model} differ in {different}",
            "start them with models of one family and the same release",
        )
    return Finding(
        Level.OK, "fingerprints", f"{info.target.model} and {info.draft.model} share {info.target.vocab_size} tokens"
    )


def limits(info: ServerInfo) -> Iterator[Finding]:
    """Whether the largest messages pass, on both sides."""
    ours = RpcLimits().max_message_bytes
    limit = min(ours, info.max_message_bytes)
    dense = 4 * info.target.vocab_size * info.max_gamma
    # p and q at every position of a round
    trace = 2 * 4 * info.target.vocab_size * (info.max_gamma + 1)
    found = f"{_mb(info.max_message_bytes)} there, {_mb(ours)} here"
    if dense > limit:
        yield Finding(
            Level.FAIL,
            "message limit",
            f"{found}; dense q of {info.max_gamma} proposals takes {_mb(dense)}",
            f"raise --max-message-bytes of the services to {2 * dense}, or lower --max-gamma",
        )
    elif trace > limit:
        yield Finding(
            Level.WARN,
            "message limit",
            f"{found}; a full trace may take {_mb(trace)} a round",
            "ask for the n largest masses instead of a full trace, or raise --max-message-bytes",
        )
    else:
        yield Finding(Level.OK, "message limit", f"{found}; the largest message takes {_mb(max(dense, trace))}")


def target(connection: Connection, info: ServerInfo) -> Finding:
    """Whether a target behind the front door is well, seen from here, and is the one the draft speaks of."""
    what = f"target {connection.address}"
    try:
        serving = health.check(connection.address, tls=connection.tls_files(), insecure=connection.insecure)
        with connection.client() as client:
            seen = client.info(timeout=3.0)
    except DraftproofError as error:
        return Finding(
            Level.WARN, what, f"can't be seen from here ({error.message})", "fine where only the draft reaches it"
        )
    if not serving:
        return Finding(Level.FAIL, what, "NOT_SERVING", "look at its log; start it again if this stays")
    if _difference(info.target, seen.target) or info.target.weights_sha256 != seen.target.weights_sha256:
        return Finding(Level.FAIL, what, "runs another model than its draft says", "start the draft server again")
    return Finding(Level.OK, what, f"serving {seen.target.model}")


def generation(connection: Connection) -> Finding:
    """Whether one short request gets through."""
    try:
        with connection.client() as client:
            done = client.generate("Hello", max_tokens=4, timeout=min(connection.timeout, 60.0))
    except DraftproofError as error:
        return Finding(Level.FAIL, "generation", error.message, "look at the servers' logs (`draftproof up --logs`)")
    if not done.lossless:
        return Finding(Level.FAIL, "generation", "not lossless", "the draft sends another q than it draws from")
    return Finding(
        Level.OK, "generation", f"{done.usage.completion_tokens} tokens in {done.stats.time.total:.2f} s, lossless"
    )


def _difference(one: Fingerprint, other: Fingerprint) -> str:
    """The first field that must be equal and isn't; empty where all are."""
    reads: dict[str, Callable[[Fingerprint], object]] = {
        "sampling contract": lambda side: side.sampling_contract,
        "vocabulary size": lambda side: side.vocab_size,
        "tokenizer": lambda side: side.tokenizer_sha256,
    }
    return next((name for name, read in reads.items() if read(one) != read(other)), "")


def _mb(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
