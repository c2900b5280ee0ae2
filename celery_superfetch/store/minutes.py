"""Series for the charts: how often an event happened in each minute of the latest hour, and in each
ten minutes of the latest day, in all and by queue list.

The scripts that count an event for the metrics also count it here (``count_in_chart`` in
``lua/shared.lua``), at the server's clock: ``count_runs`` adds the runs of a worker's report,
``recover`` and ``kill`` the jobs that they move, ``passed`` the jobs that a reap pass saw waiting.
No job costs a command. The console reads the series by this class.

No job depends on it. If a worker's process dies, the runs since its last report (a heartbeat
interval) are in no series. The number of rows is bounded: beyond it a new queue list has no series,
and its events are in the totals alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..model.records import whole
from .database import Structure, chunks
from .runs import RUN_ENDS
from .stats import TAB

WAITING_JOBS = "waiting"
#: Events that are counted: ends of runs, and jobs that a script recovered or dead-lettered.
COUNTED = (*RUN_ENDS, "recovered", "killed")

ONE_MINUTE, TEN_MINUTES = 1, 10  # minutes of a slot
#: Minutes of a slot -> complete slots of a series; the slot that is under way comes to them.
SLOTS = {ONE_MINUTE: 60, TEN_MINUTES: 144}

#: Series that the scripts make at most (``count_in_chart`` in ``lua/shared.lua``).
SERIES_MAX = 4000

ROWS_PER_READ = 500  # rows that one command reads


class Row(NamedTuple):
    """The event and the queue list of a series."""

    event: str  # one of ``COUNTED``, or ``WAITING_JOBS``
    queue_list: str = ""  # empty: of all queue lists

    @property
    def name(self) -> str:
        return self.event + TAB + self.queue_list


class Series(NamedTuple):
    """The counts of one row, one for each slot up to the last in which something was counted."""

    last: int = 0  # number of the last slot: its begin since the epoch, in slots
    counts: Sequence[int | None] = ()  # None: nothing was counted

    @classmethod
    def read(cls, text: bytes | None) -> Series:
        """Read the text of a series; one that cannot be read has no counts."""
        last, _, counts = (text or b"").partition(b" ,")
        numbers = [whole(count) if count else None for count in counts.split(b",")]
        return cls(whole(last), numbers) if last.isdigit() else cls()

    def window(self, first: int, last: int) -> list[int | None]:
        """Return the counts of the slots from ``first`` to ``last``; None: nothing was counted."""
        begin = self.last - len(self.counts) + 1
        return [
            self.counts[slot - begin] if begin <= slot <= self.last else None
            for slot in range(first, last + 1)
        ]


class Minutes(Structure):
    """``superfetch:minutes``, and its index ``superfetch:minutes:rows``."""

    def series(self, slot_minutes: int, rows: Sequence[Row]) -> dict[Row, Series]:
        """Return the series of some rows. ``slot_minutes``: a key of ``SLOTS``."""
        found: dict[Row, Series] = {}
        for some in chunks(rows, ROWS_PER_READ):
            names = [f"{slot_minutes}{TAB}{row.name}" for row in some]
            none = [None] * len(names)
            texts = self._read(self.client.hmget, self.keys.minutes, names, empty=none)
            found |= {row: Series.read(text) for row, text in zip(some, texts, strict=True)}
        return found

    def rows(self, most: int) -> list[Row]:
        """Return the rows of queue lists that grew last, ``most`` at most."""
        names = self._read(self.client.zrange, self.keys.minute_rows, -most, -1, empty=[])
        rows = (Row(*name.decode(errors="replace").partition(TAB)[::2]) for name in names)
        return [row for row in rows if row.queue_list]

    def series_count(self) -> int:
        """Return the number of series, as the scripts count them before they make a new one."""
        return int(self._read(self.client.hlen, self.keys.minutes, empty=0)) // len(SLOTS)

    def row_count(self) -> int:
        """Return the number of all rows, with those of all queue lists."""
        return int(self._read(self.client.zcard, self.keys.minute_rows, empty=0))
