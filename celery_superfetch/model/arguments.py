"""The arguments of a job as text for people, never unpickled and never whole; and the escapes and
cuts for any text from Redis that is shown.

Logs, commands, the console and ``DeadJob`` call it. Pure functions: a death loses nothing.
"""

from __future__ import annotations

from typing import Any

from .foreign import describe
from .job import UNREADABLE, NotRead, parse, read_body

ARGUMENTS_MAX_CHARS = 1024  # characters shown of each; Celery itself cuts its own views at as many
LISTED_MAX_CHARS = 80  # characters of them, or of a task's name, in a table of jobs
BODY_MAX_BYTES = 1024 * 1024  # bytes of a body that are decoded just to be shown


def arguments(payload: bytes) -> tuple[str, str]:
    """Return the positional and the keyword arguments of a job as text, cut if they are long.

    Where the sender gave a text of one of them (``argsrepr``, ``kwargsrepr``), that text is shown
    in place of its values, since the sender may have masked secrets in it.
    """
    message = parse(payload).message
    if message is None:
        return "", ""
    headers = message.get("headers") or {}
    args, kwargs = headers.get("argsrepr"), headers.get("kwargsrepr")
    if not isinstance(args, str) or not isinstance(kwargs, str):
        read = _read(message)
        args = args if isinstance(args, str) else read[0]
        kwargs = kwargs if isinstance(kwargs, str) else read[1]
    return cut(args), cut(kwargs)


def _read(message: dict[str, Any]) -> tuple[str, str]:
    """Return both kinds of arguments as text, from a message's body."""
    try:
        body = read_body(message, BODY_MAX_BYTES)
        if isinstance(body, dict):  # protocol 1
            body = body.get("args", []), body.get("kwargs", {})
        args, kwargs = body[:2]
    except NotRead as exc:
        return (f"(not shown: {exc})",) * 2
    except UNREADABLE:
        return ("(not shown: the body cannot be decoded)",) * 2
    return describe(args, ARGUMENTS_MAX_CHARS), describe(kwargs, ARGUMENTS_MAX_CHARS)


def printable(value: object) -> str:
    """Escape what a terminal would obey, and what would begin a line: queue names, ids and payloads
    hold anything, and a name with a line's end in it could say that all is well."""
    text = "" if value is None else str(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_lines(text: object) -> str:
    """Escape what a terminal would obey in a text of several lines, whose names are escaped."""
    return "\n".join(map(printable, str(text).split("\n")))


def task_title(task: str | None) -> str:
    """Return the name of a job's task for a table; its sender may have given it any name."""
    return cut(task or "(unparseable)", LISTED_MAX_CHARS)


def cut(text: str, most: int = ARGUMENTS_MAX_CHARS) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
