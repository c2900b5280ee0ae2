"""How things are shown: values for the templates, in the order in which they matter."""

from __future__ import annotations

from markupsafe import Markup, escape

from ...model.arguments import printable_lines
from ...model.words import ago, ahead, number, span
from ..health import summary

#: The states of jobs in flight -> how they are called on the page.
JOB_STATES = {
    "running": "running",
    "reserved": "reserved",
    "parked": "for later",
    "probation": "on probation",
    "struck": "with strikes",
}

#: State -> what can be done to jobs that are in it, from the page.
ENDS = {
    "running": ("terminate",),
    "reserved": ("revoke",),
    "parked": ("revoke",),
    "probation": ("revoke",),
    "struck": ("terminate",),
}


def shown(value: object) -> object:
    """What each expression of a template becomes, before it is escaped."""
    return value if isinstance(value, Markup) else "" if value is None else printable_lines(value)


def coded(text: str) -> Markup:
    """A sentence with `commands` in it."""
    parts = [escape(printable_lines(part)) for part in text.split("`")]
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if at % 2 else part for at, part in enumerate(parts)
    )


def sentence(text: str) -> str:
    """With a capital letter."""
    return text[:1].upper() + text[1:]


def clock(time: str | None) -> str:
    """A time in ISO 8601 as one reads it."""
    return f"{time[:10]} {time[11:19]} UTC" if time else "not noted"


FILTERS = {
    filter_.__name__: filter_
    for filter_ in (ago, ahead, clock, coded, number, sentence, span, summary)
}
