"""Logging: structured, to stderr, one line an event; readable on a terminal, JSON elsewhere. Secrets never pass.

Event names are noun_verb_past (`node_connected`). What other libraries log through the standard library
joins the same stream at `warning` and above.
"""

import json
import logging
import sys
from collections.abc import Callable, MutableMapping
from typing import Any, Final, TextIO, cast

import orjson
import structlog

from iop_shared.errors import BadRequest
from iop_shared.redaction import redact

LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_OURS: Final = ("event", "level", "timestamp", "component", "library")
# Access lines of servers and clients repeat what our own events say, and tell URLs.
_QUIET: Final = ("uvicorn.access", "aiohttp.access", "httpx", "httpcore", "aiosqlite")


def setup_logging(component: str, *, level: str = "info", as_json: bool | None = None) -> None:
    """Sets up logging for this process. May be called again; the last call holds.

    `component` names the process (`edge`, `node`, `iop`). `as_json` None: JSON unless stderr is a terminal.

    Raises:
        BadRequest: an unknown level, with the allowed ones.
    """
    if level not in LEVELS:
        raise BadRequest(f"log level {level!r} is unknown: use one of {', '.join(LEVELS)}", param="level")
    stream = sys.stderr
    if as_json is None:
        as_json = not stream.isatty()
    _configure(stream, LEVELS[level], as_json)
    _bridge_standard_logging(component, stream, as_json)


def get_logger(component: str) -> structlog.stdlib.BoundLogger:
    """Returns the logger of `component`, to be kept at module level; it follows a later `setup_logging`.

    Without `setup_logging`, warnings and errors go to stderr, masked alike.
    """
    if not structlog.is_configured():
        _configure(None, logging.WARNING, as_json=False)
    return cast("structlog.stdlib.BoundLogger", structlog.get_logger(component=component))


def redact_event(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Masks secrets in every field of `event`, at any depth, tracebacks included. A structlog processor."""
    for key, value in event.items():
        event[key] = redact(key, value)
    return event


class _Stream:
    """Writes lines to a text stream. A reader that went away (`2>&1 | head`) must not end a daemon."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def write_line(self, message: str) -> None:
        """Writes `message` and a line end; drops it if the stream is gone."""
        stream = self._stream or sys.stderr
        try:
            stream.write(f"{message}\n")
            stream.flush()
        except (OSError, ValueError):
            pass

    debug = info = warning = error = critical = msg = log = exception = write_line


def _processors(as_json: bool, is_terminal: bool) -> list[Any]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
        redact_event,  # after the traceback has become text, before anything is written
        _render_json if as_json else structlog.dev.ConsoleRenderer(colors=is_terminal, pad_event_to=24),
    ]


def _configure(stream: TextIO | None, level: int, as_json: bool) -> None:
    structlog.configure(
        processors=_processors(as_json, is_terminal=stream is not None and stream.isatty()),
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: _Stream(stream),
        cache_logger_on_first_use=False,  # module-level loggers exist before setup_logging is called
    )


def _render_json(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> str:
    ordered = {key: event[key] for key in _OURS if key in event}
    ordered.update((key, value) for key, value in event.items() if key not in ordered)
    try:
        return orjson.dumps(ordered, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:  # a whole number over 64 bits, or text that is no Unicode
        return json.dumps(ordered, default=str)


class _Bridge(logging.Handler):
    """Passes records of the standard library on to structlog."""

    def __init__(self, component: str) -> None:
        super().__init__(logging.WARNING)
        self._component = component

    def emit(self, record: logging.LogRecord) -> None:
        """Logs `record` under its logger's name. Never raises, as the standard library asks."""
        try:
            log = structlog.get_logger(component=self._component, library=record.name)
            write: Callable[..., Any] = log.error if record.levelno >= logging.ERROR else log.warning
            write("library_logged", message=record.getMessage(), exc_info=record.exc_info or None)
        except Exception:
            self.handleError(record)


def _bridge_standard_logging(component: str, stream: TextIO, as_json: bool) -> None:
    root = logging.getLogger()
    for handler in [h for h in root.handlers if isinstance(h, _Bridge)]:
        root.removeHandler(handler)
    root.addHandler(_Bridge(component))
    root.setLevel(logging.WARNING)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.ERROR)
