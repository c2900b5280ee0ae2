"""Filters and constants for the templates of the page.

``page`` gives them to its templates. Pure functions.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

from markupsafe import Markup, escape

from ...model.arguments import printable_lines
from ...model.humanize import ago, ahead, number, sentence, span
from ..health import summary
from ..jobs import SCHEDULED
from ..links import job_name, runbook_of
from ..overview import is_full

#: State of a job in flight -> its name on the page.
JOB_STATES = {
    "running": "running",
    "reserved": "reserved",
    "parked": SCHEDULED,
    "probation": "on probation",
    "struck": "with strikes",
}

#: State of a job -> the words of "No job ...".
NO_JOB_WORDS = {
    **{state: f"is {title}" for state, title in JOB_STATES.items()},
    "struck": "in flight, scheduled or on probation has strikes",
}

#: State -> the action on jobs in it that the page offers.
ACTIONS_BY_STATE = {
    "running": ("terminate",),
    "reserved": ("revoke",),
    "parked": ("revoke",),
    "probation": ("revoke",),
    "struck": ("terminate",),
}


def shown(value: object) -> object:
    """Return the value of a template's expression as it is shown, before it is escaped."""
    return value if isinstance(value, Markup) else "" if value is None else printable_lines(value)


def segment(text: str) -> str:
    """Return a name as one part of a path."""
    return quote(text, safe="")


def coded(text: str) -> Markup:
    """Return a sentence whose `commands` are marked as code."""
    parts = [escape(printable_lines(part)) for part in text.split("`")]
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if at % 2 else part for at, part in enumerate(parts)
    )


def clock(time: str | None) -> str:
    """Return a time in ISO 8601 in a form for people."""
    return f"{time[:10]} {time[11:19]} UTC" if time else "unknown"


FILTERS: dict[str, Callable[..., object]] = {
    filter_.__name__: filter_
    for filter_ in (
        *(ago, ahead, clock, coded, job_name, number, runbook_of, segment, sentence, span),
        *(is_full, summary),
    )
}
