"""What a job was called with, for people to look at: never unpickled, never whole."""

from __future__ import annotations

from .foreign import describe
from .job import UNREADABLE, NotRead, parse, read_body

MOST = 1024  # characters shown of each; Celery itself cuts its own views at as many
LISTED = 80  # characters of them, or of a task's name, where jobs are told of side by side
MOST_BODY = 1024 * 1024  # bytes of a body that are decoded just to be shown


def arguments(payload: bytes) -> tuple[str, str]:
    """Positional and keyword arguments of a job as text, cut where they are long; by the sender's
    own view (``argsrepr``, ``kwargsrepr``: it may hide secrets) where there is one."""
    message = parse(payload).message
    if message is None:
        return "", ""
    headers = message.get("headers") or {}
    match headers.get("argsrepr"), headers.get("kwargsrepr"):
        case str(args), str(kwargs):
            return cut(args), cut(kwargs)
    try:
        body = read_body(message, MOST_BODY)
        if isinstance(body, dict):  # protocol 1
            body = body.get("args", []), body.get("kwargs", {})
        args, kwargs = body[:2]
    except NotRead as exc:
        return (f"(not shown: {exc})",) * 2
    except UNREADABLE:
        return ("(not shown: the body cannot be decoded)",) * 2
    return describe(args, MOST), describe(kwargs, MOST)


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
    """What a job is called among others; its sender may have given it any name."""
    return cut(task or "(unparseable)", LISTED)


def cut(text: str, most: int = MOST) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
