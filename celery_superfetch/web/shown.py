"""How things are shown: values for the templates, in the order in which they matter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup, escape

from ..model.arguments import printable
from ..model.facts import STUCK
from ..model.verdict import MISSED_HEARTBEATS
from ..operate.health import Finding, by_queue
from ..operate.words import ago, ahead, number, span
from .bars import bars

#: The states of jobs in flight -> how they are called on the page.
JOB_STATES = {
    "running": "running",
    "reserved": "reserved",
    "eta": "for later",
    "probation": "on probation",
    "struck": "with strikes",
}


def overview(found: Mapping[str, Any], chart: str) -> dict[str, Any]:
    """An overview as its page has it: what needs a look stands first."""
    findings = list[Finding](found["findings"])
    worst = findings.pop(0) if findings and findings[0].level != "note" else None
    owners = [{**owner, **_mood(owner)} for owner in found["owners"]]
    owners.sort(key=lambda row: (row["mood"] == "ok", row["node"], row["owner"]))
    return {
        "found": found,
        "worst": worst,
        "findings": findings,
        "owners": owners,
        "queues": by_queue(found["queues"]),
        "chart": chart,
        "bars": bars(found["died"], found["dead"][chart], found["now"], chart),
    }


def _mood(owner: Mapping[str, Any]) -> dict[str, str]:
    """How an owner is, in one word, and how bad that is."""
    if owner["verdict"] != "alive":
        return {"mood": "critical", "word": owner["verdict"]}
    if owner["heartbeat_age"] >= MISSED_HEARTBEATS * owner["heartbeat_interval"]:
        return {"mood": "warning", "word": "silent"}
    return {"mood": "critical" if owner["state"] == STUCK else "ok", "word": owner["state"]}


def shown(value: object) -> object:
    """What each expression of a template becomes, before it is escaped."""
    return value if isinstance(value, Markup) else printable(value)


def coded(text: str) -> Markup:
    """A sentence with `commands` in it."""
    parts = [escape(printable(part)) for part in text.split("`")]
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if at % 2 else part for at, part in enumerate(parts)
    )


def sentence(text: str) -> str:
    """With a capital letter."""
    return text[:1].upper() + text[1:]


def clock(time: str | None) -> str:
    """A time in ISO 8601 as one reads it."""
    return f"{time[:10]} {time[11:19]} UTC" if time else "not noted"


FILTERS = {one.__name__: one for one in (ago, ahead, clock, coded, number, sentence, span)}
