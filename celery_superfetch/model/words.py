"""Numbers, times and this package's commands as text, for logs, commands and the console."""

from __future__ import annotations

import os
import re
import sys
from datetime import datetime

#: Seconds in a unit, the largest first.
UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def command() -> str:
    """Return how this package's commands are called, with the app of this process:
    ``celery -A shop superfetch``."""
    given = re.search(r" (?:-A ?|--app[= ])(\S+)", " ".join(sys.argv))
    return f"celery -A {given[1] if given else os.environ.get('APP', 'app')} superfetch"


def span(seconds: float) -> str:
    """Return a duration: ``0.4 s``, ``14 min``, ``3 h``, ``2 d``; rounded down, never up."""
    if seconds < 10:
        return f"{int(seconds * 10) / 10:g} s"
    unit, size = next((u, s) for u, s in UNITS if seconds >= 2 * s or s == 1)
    return f"{int(seconds // size)} {unit}"


def number(count: int, noun: str) -> str:
    """Return a count with its noun: ``1 job``, ``12 jobs``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def passed(then: str, now: str) -> float:
    """Return the seconds from one time in ISO 8601 to another."""
    return (datetime.fromisoformat(now) - datetime.fromisoformat(then)).total_seconds()


def ago(then: str, now: str) -> str:
    """Return how long a time of the server's clock is past, as text."""
    return f"{span(max(0.0, passed(then, now)))} ago"


def ahead(then: str, now: str) -> str:
    """Return how long it is until then, as text."""
    left = passed(now, then)
    return f"in {span(left)}" if left > 0 else "now"
