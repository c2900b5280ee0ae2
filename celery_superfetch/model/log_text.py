"""Filters that keep each log message on one line; the traceback below it has its own lines. Names
and texts from Redis are data in a log: they may neither begin a line of their own nor control the
terminal on which the log is read.

Each module passes its logger to ``one_line_each`` when it is imported; a worker adds
``filters_of_celerys_loggers`` (``worker.celerys_logs``). ``logging`` calls the filters in the
thread that logs. Nothing is stored.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from typing import Any

from .arguments import printable, printable_lines
from .foreign import class_name, loggable

#: Celery's loggers whose lines have names that other processes choose: a producer the id of a job
#: and the name of its task, a remote control command the ids in it, another worker its node's name.
CELERYS = (
    *("celery.worker.strategy", "celery.worker.request", "celery.app.trace"),
    *("celery.worker.control", "celery.worker.pidbox", "celery.worker.state"),
    *("celery.worker.consumer.gossip", "celery.worker.consumer.mingle"),
)
#: Celery's logger of messages that cannot be read: their tracebacks, too, quote what a producer
#: chooses.
CELERYS_UNREAD = "celery.worker.consumer.consumer"

#: The first characters of those parts of a traceback that are no error: its frames, and the lines
#: that link one error to another.
NO_ERROR = ("  ", "Traceback ", "\n")

#: Keywords by which Celery's messages name a job; an error of a task keeps its lines.
NAMES = "id", "name"


class _PrintableNames(logging.Filter):
    """A filter that escapes the arguments of a log message; numbers stay as they are."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(map(_escaped, record.args))
        elif isinstance(record.args, dict):
            names = {key: _escaped(record.args[key]) for key in NAMES if key in record.args}
            record.args = {**record.args, **names}
        return True


class _PrintableErrors(_PrintableNames):
    """A filter that also escapes the errors in a traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        if error is not None and not record.exc_text:
            record.exc_text = _traceback(error)
        return super().filter(record)


class _OneLine(_PrintableErrors):
    """A filter that also escapes the message itself, so that it has one line."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.msg, str):
            record.msg = printable(record.msg)
        return super().filter(record)


def _escaped(value: Any) -> Any:
    if type(value) is str:
        return printable(value)
    return value if value is None or isinstance(value, (int, float)) else _Text(value)


class _Text:
    """A wrapper of an error, a report or another object, whose ``str`` and ``repr`` are one
    line."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return printable(self._value)

    def __repr__(self) -> str:
        return printable(repr(self._value))


def _traceback(error: BaseException) -> str:
    """Return a traceback as a log has it, in which each error is one line.

    Where user code keeps it from being formatted, return the name of the error's class: an
    exception in a filter would be raised in the code that logs.
    """
    if loggable(error) is None:
        return f"{class_name(error)}: its traceback cannot be formatted"
    parts = (part.rstrip("\n") for part in traceback.format_exception(error))
    return "\n".join(
        printable_lines(part) if part.startswith(NO_ERROR) else printable(part) for part in parts
    )


_one_line, _printable_names, _printable_errors = _OneLine(), _PrintableNames(), _PrintableErrors()


def one_line_each(logger: logging.Logger) -> logging.Logger:
    """Add the filter to ``logger``, each of whose messages is one line from then on; return it."""
    logger.addFilter(_one_line)
    return logger


def filters_of_celerys_loggers() -> Iterator[tuple[str, logging.Filter]]:
    """Yield the names of Celery's loggers that log names which other processes choose, each with
    the filter that escapes the names."""
    for name in CELERYS:
        yield name, _printable_names
    yield CELERYS_UNREAD, _printable_errors
