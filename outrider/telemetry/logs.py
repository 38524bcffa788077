"""
Structured logs on standard error: one event per line, JSON for machines or colours for a terminal.

Events carry ids, never payloads. What libraries log through `logging` has the same form, from the level warning on.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from io import StringIO
from textwrap import indent
from typing import Literal, TextIO

import structlog

from outrider.storage.message import Message
from outrider.telemetry.printable import printable, printable_json, printable_lines

LogFormat = Literal["auto", "json", "console"]


def configure_logging(level: str, log_format: LogFormat, **bound: str) -> None:
    """Configure logging for this process. `bound` (service, name) is added to every event."""
    console = log_format == "console" or (log_format == "auto" and sys.stderr.isatty())

    # Not with contextvars: a new thread starts without them.
    def add_bound(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        return {**bound, **event}

    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        add_bound,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: list[structlog.typing.Processor] = (
        # A plain traceback: the pretty one prints local variables, and so payloads.
        [
            _printable_event,
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=_printable_traceback),
        ]
        if console
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(_json)]
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    # Our own events are filtered by structlog, above.
    logging.getLogger("outrider").setLevel(logging.DEBUG)


def _printable_event(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Values that are not text are rendered with repr(), which escapes as `printable` does."""
    return {printable(key): printable(value) if isinstance(value, str) else value for key, value in event.items()}


def _printable_traceback(out: TextIO, exc_info: structlog.typing.ExcInfo) -> None:
    """Indented, so that no line of an exception's text looks like an event."""
    text = StringIO()
    structlog.dev.plain_traceback(text, exc_info)
    out.write(indent(printable_lines(text.getvalue()), "    "))


def _json(event: object, default: Callable[[object], object]) -> str:
    return printable_json(event, default)


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    return structlog.stdlib.get_logger(name)


def context_of(message: Message) -> AbstractContextManager[None]:
    """Bind the producer's structlog context, from the row. Ignored if it is not a JSON object or nested too deeply."""
    try:
        context = json.loads(message.context) if message.context else {}
    except (ValueError, RecursionError):
        context = {}
    return structlog.contextvars.bound_contextvars(**(context if isinstance(context, dict) else {}))
