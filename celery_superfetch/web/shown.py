"""How things are shown: values for the templates, in the order in which they matter."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from markupsafe import Markup, escape

from ..model.arguments import cut, printable
from ..model.facts import STUCK
from ..model.verdict import MISSED_HEARTBEATS
from ..operate.health import Finding, by_queue
from ..operate.words import number, span
from .bars import bars

#: Rows of a table, and findings, unless all are asked for.
ROWS, FINDINGS = 40, 6

#: Characters of arguments in a list.
SHORT = 120


#: The states of jobs in flight -> how they are called on the page.
JOB_STATES = {
    "running": "running",
    "reserved": "reserved",
    "eta": "for later",
    "probation": "on probation",
    "struck": "with strikes",
}


class Overview:
    """An overview as it is laid out on the page."""

    def __init__(
        self, found: Mapping[str, Any], chart: str = "day", all_rows: bool = False
    ) -> None:
        self.found = found
        self.now: float = found["now"]
        self.chart = chart
        self.bars = bars(found["deaths"], found["dead"][chart], self.now, chart)
        self._rows = None if all_rows else ROWS

    @property
    def verdict(self) -> Finding | None:
        """What is worst; None: all is well."""
        worst: list[Finding] = self.found["findings"][:1]
        return worst[0] if worst and worst[0].level != "note" else None

    @property
    def level(self) -> str:
        return self.verdict.level if self.verdict else "ok"

    @property
    def rest(self) -> list[Finding]:
        """The other findings that there is room for."""
        rest: list[Finding] = self.found["findings"][1 if self.verdict else 0 :]
        return rest[:FINDINGS] if self._rows else rest

    @property
    def unsaid(self) -> int:
        """Findings beyond those."""
        return len(self.found["findings"]) - bool(self.verdict) - len(self.rest)

    @property
    def totals(self) -> dict[str, int]:
        """Jobs by what becomes of them."""
        owners, queues = self.found["owners"], self.found["queues"]
        return {
            "waiting": sum(row["length"] or 0 for row in queues),
            **{name: sum(o[name] for o in owners) for name in ("running", "reserved", "eta")},
            "probation": sum(row["probation"] for row in queues),
            "dead": self.found["dead_set"]["size"],
        }

    @property
    def owners(self) -> list[dict[str, Any]]:
        """Those first that are not well."""
        rows = [{**owner, **_mood(owner)} for owner in self.found["owners"]]
        rows.sort(key=lambda row: (row["mood"] == "ok", row["node"], row["owner"]))
        return rows[: self._rows]

    @property
    def queues(self) -> list[dict[str, Any]]:
        """A row for each queue, with all its priorities; those first that wait for somebody."""
        queues = by_queue(self.found["queues"])
        for queue in queues:
            waits = queue["waiting"] or queue["probation"]
            queue["unserved"] = bool(waits and not queue["consumers"])
        rows = sorted(
            queues,
            key=lambda row: (not row["error"], not row["unserved"], -row["waiting"], row["queue"]),
        )
        return rows[: self._rows]

    @property
    def more(self) -> dict[str, int]:
        """Rows that are left out of each table."""
        names = {row["queue"] for row in self.found["queues"]}
        owners, most = len(self.found["owners"]), self._rows
        return {
            "owners": max(0, owners - most) if most else 0,
            "queues": max(0, len(names) - most) if most else 0,
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


def ago(seconds: float, now: float) -> str:
    """How long a time of the server's clock is past."""
    return f"{span(max(0.0, now - seconds))} ago"


def ahead(time: str, now: float) -> str:
    """How long it is until then."""
    left = datetime.fromisoformat(time).timestamp() - now
    return f"in {span(left)}" if left > 0 else "now"


def since(time: str, now: float) -> str:
    """How long ago that was."""
    return ago(datetime.fromisoformat(time).timestamp(), now)


def clock(time: str | None) -> str:
    """A time in ISO 8601 as one reads it."""
    return f"{time[:10]} {time[11:19]} UTC" if time else "not noted"


def short(text: str) -> str:
    return cut(text, SHORT)


FILTERS = {
    "ago": ago,
    "ahead": ahead,
    "clock": clock,
    "coded": coded,
    "number": number,
    "sentence": sentence,
    "short": short,
    "since": since,
    "span": span,
}
