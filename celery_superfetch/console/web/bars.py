"""What died in the last day or week, as bars."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, NamedTuple

from ...model.words import number

#: What a chart is called -> the seconds of a bar, the number of bars, how its begin is said.
SPANS = {"day": (3600, 24, "%H:%M"), "week": (86400, 7, "%a %d %b")}


class Bar(NamedTuple):
    """What happened in one hour, or on one day."""

    #: When it began.
    label: str
    deaths: int
    recovered: int
    #: Jobs of the dead set that died then.
    dead: int

    def __str__(self) -> str:
        died = f"{number(self.deaths, 'worker')} died" if self.deaths else "no worker died"
        return f"{self.label}: {died}, {number(self.recovered, 'job')} recovered, {self.dead} dead"


def begins(now: float, span: str) -> list[int]:
    """When the bars begin, in server ms; the last one is not over yet. All in UTC."""
    size, count, _ = SPANS[span]
    last = int(now // size)
    return [at * size * 1000 for at in range(last - count + 1, last + 1)]


def bars(
    deaths: Iterable[Mapping[str, Any]], dead: Sequence[int], now: float, span: str
) -> list[Bar]:
    """The deaths of workers (``at`` in server ms) and the numbers of dead jobs, oldest first."""
    size, _, form = SPANS[span]
    died, recovered = Counter[int](), Counter[int]()
    for death in deaths:
        begin = int(death["at"] // (size * 1000)) * size * 1000
        died[begin] += 1
        recovered[begin] += int(death.get("recovered", 0))
    chart = []
    for at, jobs in zip(begins(now, span), dead, strict=True):
        label = datetime.fromtimestamp(at / 1000, timezone.utc).strftime(form)
        chart.append(Bar(label, died[at], recovered[at], jobs))
    return chart
