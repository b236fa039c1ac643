"""Structured logs on stderr: JSON lines for machines, colours for a terminal."""

from __future__ import annotations

import logging
import sys

import structlog

FORMATS = ("auto", "json", "console")


def configure(level: str = "info", fmt: str = "auto") -> None:
    """Sets up structlog and routes the standard library's loggers through it.

    Args:
        level: debug, info, warning or error.
        fmt: json, console, or auto (console on a terminal).
    """
    console = fmt == "console" or (fmt == "auto" and sys.stderr.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    # local variables hold prompts and request keys, which belong in no log
    as_dict = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
    as_text = structlog.dev.RichTracebackFormatter(show_locals=False)
    final: list[structlog.typing.Processor] = (
        [structlog.dev.ConsoleRenderer(exception_formatter=as_text)]
        if console
        else [structlog.processors.ExceptionRenderer(as_dict), structlog.processors.JSONRenderer()]
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *final]
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    for ours in ("draftproof", "target_service", "draft_service", "orchestrator", "__main__"):
        logging.getLogger(ours).setLevel(level.upper())
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
