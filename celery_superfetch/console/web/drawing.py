"""Charts as SVG: the paths that the templates put into it, and the words that say the same.

``charts_page`` calls it. Pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ...inspector import WAITING_JOBS
from ..charts import SERIES, greatest, time_of

CHART_HEIGHT = 100  # of a chart, in units of its view box; a slot is one unit wide
BAR_WIDTH = 0.8  # of a slot
LEAST_BAR = 4.0  # height of the bar of the smallest count: less could not be seen

#: Series whose events are bad news -> the class of their bars.
MOODS = {"failed": "warning", "recovered": "warning", "killed": "critical"}


class Drawing(NamedTuple):
    """One chart."""

    event: str
    title: str  # "Failed"
    meaning: str  # "runs that raised an error"
    mood: str  # class of its bars
    width: int  # number of its slots
    bars: str  # the path of its bars
    known: str  # the path of its base line, with gaps where nothing is known
    most: int
    sum: str  # "161 in all"
    begin: str
    end: str
    slot: str  # "a minute"
    text: str  # all that it shows, for those who do not see it


def drawings_of(document: Mapping[str, Any], events: Iterable[str] = SERIES) -> list[Drawing]:
    """Draw some series of a document of ``charts_of`` or ``last_hour_of``."""
    return [
        _drawing(event, document["series"][event], document["sums"][event], document)
        for event in events
        if event != "rejected" or document["sums"][event]  # most apps reject no job
    ]


def _drawing(
    event: str, counts: Sequence[int | None], total: int, document: Mapping[str, Any]
) -> Drawing:
    title, meaning = SERIES[event]
    mood = MOODS.get(event, "note") if total else "note"
    most = greatest(counts)
    return Drawing(
        event,
        title,
        meaning,
        mood,
        width=len(counts),
        bars=bars_of(counts),
        known=known_of(counts),
        most=most,
        sum=f"at most {most}" if event == WAITING_JOBS else f"{total} in all",
        begin=time_of(document, 0),
        end=time_of(document, -1),
        slot=_slot(document),
        text=_text(event, counts, total, document),
    )


def bars_of(counts: Sequence[int | None]) -> str:
    """Return the path of a bar for each count above zero, as high as its share of the greatest."""
    most = greatest(counts)
    parts = []
    for at, count in enumerate(counts):
        if count:
            height = max(LEAST_BAR, CHART_HEIGHT * count / most)
            left = at + (1 - BAR_WIDTH) / 2
            parts.append(f"M{left:g} {CHART_HEIGHT}v-{height:g}h{BAR_WIDTH:g}V{CHART_HEIGHT}z")
    return "".join(parts)


def known_of(counts: Sequence[int | None]) -> str:
    """Return the path of the base line under the slots of which something is known."""
    return "".join(
        f"M{at} {CHART_HEIGHT}h1" for at, count in enumerate(counts) if count is not None
    )


def _text(event: str, counts: Sequence[int | None], total: int, document: Mapping[str, Any]) -> str:
    """Return what a chart shows, in words."""
    slot = _slot(document)
    span = f"From {time_of(document, 0)} to {time_of(document, -1)} UTC, by {slot}"
    if all(count is None for count in counts):
        return f"{span}: nothing is known."
    most = greatest(counts)
    if not most:
        return f"{span}: none."
    when = time_of(document, [count or 0 for count in counts].index(most))
    in_all = "" if event == WAITING_JOBS else f"{total} in all, "
    return f"{span}: {in_all}at most {most} in {slot}, at {when}."


def _slot(document: Mapping[str, Any]) -> str:
    return "a minute" if document["minutes"] == 1 else f"{document['minutes']} minutes"
