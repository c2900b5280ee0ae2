"""The CLI's output for people; for programs there is ``--json``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..model.arguments import cut, printable
from ..operate.words import span

PIPE_WIDTH = 10_000  # columns where stdout is no terminal: a pipe gets every row uncut on one line
SHORT_ID = 12  # characters of a job's id on a terminal; a start is enough for every command
LIST_ARGS = 80  # characters of a job's arguments in a list; `dead show` has more of them
GAP = 2  # spaces between two columns
UNBROKEN = 16  # cells up to this long are never broken; in longer ones, words are not

DEAD_JOB = ("Id", "Died", "Task", "Task id", "Queue", "Strikes", "Recoveries", "Reason", "Args")
#: What a narrow terminal goes without, the first first.
DEAD_SPARE = ("Args", "Recoveries", "Task id", "Strikes", "Queue")
DETAILS = ("Id", "Task", "Task id", "App", "Queue", "Time of death", "Reason", "Owner", "Strikes")
EVENT = ("Time", "Host", "Owner", "Strike", "Exit status", "Reason")


class Tables:
    """Prints tables to stdout, with ``no_color`` in plain text; ``columns``: as on a terminal that
    wide, whatever stdout is."""

    def __init__(self, no_color: bool = False, columns: int | None = None) -> None:
        self.console = Console(
            width=columns, no_color=no_color, highlight=False, markup=False, emoji=False
        )
        self.wide = False  # everything, each row on one line: for a pipe, and for who asks for it
        if columns is None and not self.console.is_terminal:
            self.widen()

    def widen(self) -> None:
        self.wide, self.console.width = True, PIPE_WIDTH

    def line(self, text: object = "", style: str = "") -> None:
        """One line, as long as it is; a terminal gets it broken between words."""
        self.console.print(_text(text, style), soft_wrap=self.wide)

    def short(self, id: str) -> str:
        return id if self.wide else id[:SHORT_ID]

    def table(
        self,
        titles: Sequence[str],
        rows: Iterable[Mapping[str, object]],
        spare: Sequence[str] = (),
        most: int = 0,
    ) -> None:
        """A table of ``most`` rows on a terminal (0: all), where no word is broken that fits. A
        cell is a value, or a ``(value, style)``, named in its row as its title in lower case, with
        ``_``. ``spare``: titles that a narrow terminal goes without, the first first."""
        found = [{title: _cell(row.get(_name(title))) for title in titles} for row in rows]
        if not found:
            return
        left = 0 if self.wide or not most else max(0, len(found) - most)
        found = found[: len(found) - left]
        texts = {title: [title, *(row[title].plain for row in found)] for title in titles}
        least = {title: max(map(_least, texts[title])) for title in titles}
        shown, room = list(titles), self.console.width + GAP
        for title in spare:
            if sum(least[one] + GAP for one in shown) > room:
                shown.remove(title)
        fits = sum(least[one] + GAP for one in shown) <= room
        table = Table(box=None, header_style="bold", padding=(0, GAP, 0, 0), pad_edge=False)
        for title in shown:
            numbers = all(cell.justify == "right" for row in found if (cell := row[title]).plain)
            # What has to be shortened rich takes from columns without a width.
            whole = fits and least[title] == max(map(cell_len, texts[title]))
            table.add_column(
                title,
                width=least[title] if whole else None,
                overflow="fold",
                justify="right" if numbers else "left",
            )
        for row in found:
            table.add_row(*(row[title] for title in shown))
        self.console.print(table)
        if left:
            self.line(f"and {left} more: --wide shows all")

    def dead_row(self, job: dict[str, Any], now: int) -> dict[str, Any]:
        """A job in a table, at a time of the server (ms)."""
        ago = f"{span(max(0, now - job['died_at']) / 1000)} ago"
        return {
            **job,
            # A second item of the same bytes is told apart by the end of its id alone.
            "id": job["id"] if "-" in job["id"] else self.short(job["id"]),
            "died": job["time_of_death"] if self.wide else ago,
            "task": job["task"] or "(unparseable)",
            "args": cut(f"{job['args']} {job['kwargs']}".strip(), LIST_ARGS),
        }

    def dead_job(self, job: dict[str, Any]) -> None:
        self._fields((*DETAILS, "Recoveries", "Args", "Kwargs"), job)
        self.line("\nHistory, the oldest first:")
        for event in job["history"]:
            self._fields(EVENT, {**event, "exit_status": event["status"]})
            self.line()
        coded = " (base64)" if job["encoding"] == "base64" else ""
        self.line(f"Payload{coded}:")
        self.console.print(_text(job["payload"]), soft_wrap=True)

    def _fields(self, titles: Sequence[str], row: Mapping[str, object]) -> None:
        """What would not fit beside each other on a terminal, each on a line."""
        for title in titles:
            value = row[_name(title)]
            self.line(f"{title + ':':<15}{'-' if value is None else value}")


def _least(text: str) -> int:
    """Characters in which a cell stays legible."""
    whole = cell_len(text)
    return whole if whole <= UNBROKEN else max(map(cell_len, text.split()), default=0)


def _name(title: str) -> str:
    return title.lower().replace(" ", "_")


def _cell(value: object) -> Text:
    value, style = value if isinstance(value, tuple) else (value, "")
    text = _text("-" if value is None else value, style)
    if isinstance(value, (int, float)):
        text.justify = "right"
    return text


def _text(value: object, style: str = "") -> Text:
    return Text(printable(value), style)
