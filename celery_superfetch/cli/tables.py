"""The commands' output for people: lines and tables. Programs use ``--json``.

Each ``Session`` has a ``Tables``; the console prints by it, too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from textwrap import wrap
from typing import Any

import click

from ..model.arguments import LISTED_MAX_CHARS, cut, printable, task_title
from ..model.humanize import span

SHORT_ID = 12  # characters of a job's id on a terminal; a start is enough for every command
COLUMN_GAP = "  "  # between two columns
UNBROKEN_CHARS = 16  # cells up to this long are never broken; in longer ones, words are not

Style = Mapping[str, Any]  # of ``click.style``
RED: Style = {"fg": "red", "bold": True}
YELLOW: Style = {"fg": "yellow"}
GREEN: Style = {"fg": "green"}
BOLD: Style = {"bold": True}
PLAIN_STYLE: Style = {}
STYLES = {"critical": RED, "warning": YELLOW, "note": PLAIN_STYLE, "ok": GREEN}

DEAD_JOB = ("Id", "Died", "Task", "Task id", "Queue", "Strikes", "Recoveries", "Reason", "Args")
#: Columns that a narrow terminal leaves out, in this order.
DEAD_SPARE = ("Args", "Recoveries", "Task id", "Strikes", "Queue")
DETAILS = (
    *("Id", "Task", "Task id", "App", "Queue", "Time of death", "Reason", "Worker id"),
    *("Strikes", "Recoveries", "Args", "Kwargs"),
)
EVENT = ("Time", "Host", "Worker id", "Strike", "Reason")


class Tables:
    """Lines and tables on stdout; in plain text with ``no_color``."""

    def __init__(self, no_color: bool = False) -> None:
        self.no_color = no_color
        self.say: Callable[[str], object] = click.echo
        # Everything, each row on one line: for a pipe, and with --wide.
        self.wide = not sys.stdout.isatty()
        self.width, self.height = sys.maxsize, 0
        if not self.wide:  # the terminal's own answer: COLUMNS may be another's, or an old one
            columns, lines = os.get_terminal_size(sys.stdout.fileno())
            self.width, self.height = columns or 80, lines or 24

    def widen(self) -> None:
        self.wide, self.width = True, sys.maxsize

    def line(self, text: object = "", style: Style = PLAIN_STYLE) -> None:
        """Print one line; on a terminal it is broken between words."""
        shown = printable(text)
        for piece in [shown] if self.wide else _wrapped(shown, self.width):
            self.say(self._styled(piece, style))

    def short(self, id: str) -> str:
        return id if self.wide else id[:SHORT_ID]

    def table(
        self,
        titles: Sequence[str],
        rows: Iterable[Mapping[str, object]],
        spare: Sequence[str] = (),
        most: int = 0,
    ) -> None:
        """Print a table. No word is broken that fits into a line.

        Arguments:
            rows: title in lower case, with ``_`` -> a value, or ``(value, style)``.
            spare: titles that a narrow terminal leaves out, in this order.
            most: rows that a terminal shows at most; 0: all.
        """
        rows = [*rows]
        hidden = 0 if self.wide or not most else max(0, len(rows) - most)
        rows = rows[: len(rows) - hidden]
        columns = [_Column(title, [row.get(_name(title)) for row in rows]) for title in titles]
        for title in spare:
            if _widths(columns) > self.width:
                columns = [column for column in columns if column.title != title]
        for column in columns:  # the surplus goes to columns that can use it
            column.width += max(0, min(column.wanted, self.width - _widths(columns)))
        # On a very narrow terminal not even one character of each fits.
        while _widths(columns) > self.width and max(column.width for column in columns) > 1:
            max(columns, key=lambda column: column.width).width -= 1
        for row in zip(*(column.cells for column in columns), strict=True) if rows else ():
            pieces = [_wrapped(text, c.width) for c, (text, _) in zip(columns, row, strict=True)]
            for line in zip_longest(*pieces, fillvalue=""):
                texts = [c.aligned(text) for c, text in zip(columns, line, strict=True)]
                styles = [style for _, style in row]
                self.say(COLUMN_GAP.join(map(self._styled, texts, styles)).rstrip())
        if hidden:
            self.line(f"and {hidden} more: --wide shows all")

    def _styled(self, text: str, style: Style) -> str:
        return text if self.no_color or not style else click.style(text, **style)

    def dead_row(self, job: dict[str, Any], now: int) -> dict[str, Any]:
        """Return the row of a dead job; ``now``: the server's time (ms)."""
        ago = f"{span(max(0, now - job['died_at']) / 1000)} ago"
        return {
            **job,
            # Ids of items with the same bytes differ only in their ends.
            "id": job["id"] if "-" in job["id"] else self.short(job["id"]),
            "died": job["time_of_death"] if self.wide else ago,
            "task": task_title(job["task"]),
            "args": cut(f"{job['args']} {job['kwargs']}".strip(), LISTED_MAX_CHARS),
        }

    def dead_job(self, job: dict[str, Any]) -> None:
        self._fields(DETAILS, {**job, "worker_id": job["owner"]})
        self.line()
        self.line("History, the oldest first:")
        for event in job["history"]:
            self._fields(EVENT, {**event, "worker_id": event["owner"]})
            self.line()
        if job["whole_bytes"]:
            self.line(f"Only the first bytes of its message were kept, of {job['whole_bytes']:,}.")
        coded = " (base64)" if job["encoding"] == "base64" else ""
        self.line(f"Payload{coded}:")
        self.say(printable(job["payload"]))

    def _fields(self, titles: Sequence[str], row: Mapping[str, object]) -> None:
        """Print fields, each on a line of its own."""
        for title in titles:
            value = row[_name(title)]
            self.line(f"{title + ':':<15}{'-' if value is None else value}")


class _Column:
    """The cells of a column, its title first, and the width at which they are legible."""

    def __init__(self, title: str, values: Sequence[object]) -> None:
        pairs = [value if isinstance(value, tuple) else (value, PLAIN_STYLE) for value in values]
        self.title = title
        self.cells = [(title, BOLD), *((_text(value), style) for value, style in pairs)]
        self.is_numbers = all(isinstance(value, (int, float)) for value, _ in pairs)
        texts = [text for text, _ in self.cells]
        self.width = max(map(_least, texts))
        self.wanted = max(map(len, texts)) - self.width

    def aligned(self, text: str) -> str:
        return text.rjust(self.width) if self.is_numbers else text.ljust(self.width)


def _widths(columns: Sequence[_Column]) -> int:
    return sum(column.width + len(COLUMN_GAP) for column in columns) - len(COLUMN_GAP)


def _least(text: str) -> int:
    return len(text) if len(text) <= UNBROKEN_CHARS else max(map(len, text.split()), default=0)


def _wrapped(text: str, width: int) -> list[str]:
    return wrap(text, width, break_on_hyphens=False) or [""]


def _name(title: str) -> str:
    return title.lower().replace(" ", "_")


def _text(value: object) -> str:
    return "-" if value is None else printable(str(value).replace("\n", " "))
