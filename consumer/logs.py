"""
The log of a worker: structlog events, through the logger that the program gives or through structlog's configuration.

Tracebacks are formatted here, without local variables: the renderers of structlog and rich print them by default, and
with them the arguments of the handler.
"""

from __future__ import annotations

import logging
import traceback
from typing import Any

import structlog

Logger = Any
"""A structlog logger."""

_KEY_VALUE = structlog.processors.KeyValueRenderer(key_order=["event"])


def use_logger(logger: Any) -> Logger:
    """A structlog logger for a structlog logger, for a logging.Logger, or for None."""
    if logger is None:
        return structlog.stdlib.get_logger("outrider.consumer")
    if isinstance(logger, logging.Logger):
        return structlog.wrap_logger(
            logger,
            processors=[structlog.stdlib.filter_by_level, structlog.contextvars.merge_contextvars, _render],
            wrapper_class=structlog.stdlib.BoundLogger,
        )
    return logger


def format_error(error: BaseException) -> str:
    """The traceback, without local variables."""
    return "".join(traceback.format_exception(error)).rstrip()


def _render(logger: Any, method: str, event: structlog.typing.EventDict) -> str:
    exception = event.pop("exception", None)
    line = str(_KEY_VALUE(logger, method, event))
    return f"{line}\n{exception}" if exception else line
