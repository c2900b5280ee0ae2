"""Numbers, times and this package's commands as text, for logs, commands and the console.

The store, the reaper, workers, commands and the console call these functions. They change nothing:
a death loses nothing.
"""

from __future__ import annotations

import os
import re
import sys
from datetime import datetime

#: Seconds in a unit, the largest first.
SPAN_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
#: The letter of a unit, as people type it -> seconds.
TYPED_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def command() -> str:
    """Return how the command lines of this package begin, with the app that this process was
    started with: ``celery -A shop superfetch``. Celery's command also reads the variable ``APP``;
    ``app`` stands where neither names one."""
    app_option = re.search(r" (?:-A ?|--app[= ])(\S+)", " ".join(sys.argv))
    return f"celery -A {app_option[1] if app_option else os.environ.get('APP', 'app')} superfetch"


def span(seconds: float) -> str:
    """Return a duration: ``0.4 s``, ``100 s``, ``14 min``, ``3 h``, ``2 d``; in the largest unit of
    which there are two, rounded down."""
    if seconds < 10:
        return f"{int(seconds * 10) / 10:g} s"
    unit, size = next((u, s) for u, s in SPAN_UNITS if seconds >= 2 * s or s == 1)
    return f"{int(seconds // size)} {unit}"


def seconds_in(text: str) -> float | None:
    """Parse a duration that a person typed: ``90``, ``90s``, ``15m``, ``36h``, ``7d``. Return it in
    seconds; None if it is none."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhd]?)", text, re.ASCII)
    return float(match[1]) * TYPED_UNITS[match[2]] if match else None


def number(count: int, noun: str) -> str:
    """Return a count with its noun: ``1 job``, ``12 jobs``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def sentence(text: str) -> str:
    """Return a text with a capital letter at its beginning; the rest of it does not change."""
    return text[:1].upper() + text[1:]


def passed(then: str, now: str) -> float:
    """Return the seconds from one time in ISO 8601 to another."""
    return (datetime.fromisoformat(now) - datetime.fromisoformat(then)).total_seconds()


def ago(then: str, now: str) -> str:
    """Return how long before ``now`` the time ``then`` was, as text."""
    return f"{span(max(0.0, passed(then, now)))} ago"


def ahead(then: str, now: str) -> str:
    """Return how long it is from ``now`` until ``then``, as text."""
    left = passed(now, then)
    return f"in {span(left)}" if left > 0 else "now"
