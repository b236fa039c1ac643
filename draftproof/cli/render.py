"""How generations look on a terminal: tokens by source, a legend, a summary."""

from __future__ import annotations

import sys
from collections.abc import Callable

from rich.console import Console
from rich.text import Text

from draftproof.client import Chunk, Completion, Stats, Token, TokenSource

STYLES = {
    TokenSource.ACCEPTED: "green",
    TokenSource.RESAMPLED: "bold yellow",
    TokenSource.BONUS: "bold cyan",
    TokenSource.TARGET: "",
}
_MEANINGS = {
    TokenSource.ACCEPTED: "the draft's proposal",
    TokenSource.RESAMPLED: "in place of a rejected one",
    TokenSource.BONUS: "after a fully accepted block",
    TokenSource.TARGET: "without a proposal",
}
# everything a terminal would obey, less newline and tab
_CONTROLS = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def consoles() -> tuple[Console, Console]:
    """stdout for text, stderr for what is said about it."""
    return Console(highlight=False), Console(stderr=True, highlight=False)


def printer(console: Console, plain: bool) -> Callable[[Chunk], None]:
    """What prints a chunk: coloured by source on a terminal, else the bare text."""
    if plain or not console.is_terminal:

        def write(chunk: Chunk) -> None:
            sys.stdout.write(chunk.text)
            sys.stdout.flush()

        return write

    def show(chunk: Chunk) -> None:
        console.print(Text.assemble(*map(_styled, chunk.tokens)), end="", soft_wrap=True)

    return show


def _styled(token: Token) -> tuple[str, str]:
    return token.text.translate(_CONTROLS), STYLES[token.source]


def legend() -> Text:
    """Which colour is which."""
    parts: list[tuple[str, str]] = []
    for source, style in STYLES.items():
        parts += [("   " if parts else "", ""), (source.value, style), (f" {_MEANINGS[source]}", "dim")]
    return Text.assemble(*parts)


def summary(completion: Completion) -> list[Text]:
    """What happened, in a few lines."""
    stats, time = completion.stats, completion.stats.time
    count = completion.usage.completion_tokens
    speed = f" ({count / time.total:.1f} tokens/s)" if time.total else ""
    lines = [
        Text(f"{acceptance(stats)} · {_steps(stats)}"),
        Text(
            f"{count} tokens in {time.total:.2f} s{speed}, first after {time.first_token:.2f} s"
            f" · ended by {completion.finish_reason}"
        ),
        Text(
            f"drafting {time.draft:.2f} s · queue {time.queue:.2f} s · target forward {time.forward:.2f} s"
            f" · verification {time.verify:.2f} s · wire {time.wire:.2f} s",
            "dim",
        ),
    ]
    lines += [Text(f"note: {note}", "yellow") for note in completion.notes]
    if completion.rule.lossy:
        lines.append(Text(_loss(completion), "bold red"))
    elif not completion.lossless:
        lines.append(
            Text("not lossless: something bent the output law; see the notes and the server's log", "bold red")
        )
    return lines


def _loss(completion: Completion) -> str:
    share = completion.loss / max(1, completion.usage.completion_tokens)
    return f"not lossless: the {completion.rule} rule moved each token's law by up to {share:.4f} in total variation"


def acceptance(stats: Stats) -> str:
    """Acceptance in words, pooled and by position."""
    if stats.acceptance_rate is None:
        return "nothing drafted"
    pairs = zip(stats.accepted_per_position, stats.drafted_per_position, strict=False)
    positions = " ".join(f"{100 * accepted / drafted:.0f}" for accepted, drafted in pairs if drafted)
    return (
        f"acceptance {100 * stats.acceptance_rate:.1f} % ({stats.accepted} of {stats.drafted} proposals;"
        f" by position {positions})"
    )


def _steps(stats: Stats) -> str:
    rate = stats.tokens_per_target_step
    return f"{stats.rounds} target steps" + ("" if rate is None else f", {rate:.2f} tokens each")
