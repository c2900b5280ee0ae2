"""What the reader sees: events that stay, and under them a table that lives (on a terminal)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

#: Seconds between two lines of progress where there is no terminal to redraw.
LINE_INTERVAL = 2.0


@dataclass
class Row:
    """One process in the live table."""

    title: str
    state: str
    in_flight: int | None = None
    running: int | None = None
    finished: int | None = None


@dataclass
class View:
    """One moment of the demo."""

    rows: list[Row] = field(default_factory=list)
    waiting: int = 0
    finished: int = 0
    total: int = 0

    def line(self) -> str:
        busy = sum(row.running or 0 for row in self.rows)
        return (
            f"    {self.finished} of {self.total} jobs finished, {busy} running, "
            f"{self.waiting} waiting on the queue"
        )


class Screen:
    """Prints events with the seconds since the start; a context that owns the terminal."""

    def __init__(self) -> None:
        self.console = Console(highlight=False, soft_wrap=True)
        self.started = time.monotonic()
        self._live = self._fresh()
        self._shown = ""
        self._next_line = 0.0

    def _fresh(self) -> Live:
        return Live(console=self.console, transient=True, refresh_per_second=8)

    def __enter__(self) -> Screen:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take the live table away; events may still be printed."""
        self._live.stop()

    def say(self, text: str, style: str = "") -> None:
        """An event."""
        stamp = f"{time.monotonic() - self.started:5.1f} s  "
        self.console.print(Text(stamp, style="dim") + Text(text, style=style))

    @contextlib.contextmanager
    def lend(self) -> Iterator[bool]:
        """Let another program print; whether there is a terminal for it to print to."""
        self._live.stop()
        try:
            yield self.console.is_terminal
        finally:
            # The old one would wipe out as many lines as its table once had.
            self._live = self._fresh()
            self.__enter__()

    def block(self, text: str) -> None:
        """Something that another program has printed."""
        for line in text.splitlines():
            self.console.print(Text(f"    {line}"))

    def show(self, view: View) -> None:
        """Where things stand; called often."""
        if self.console.is_terminal:
            self._live.update(_draw(view))
            return
        now, line = time.monotonic(), view.line()
        if now >= self._next_line and line != self._shown:
            self._next_line, self._shown = now + LINE_INTERVAL, line
            self.say(line)

    def table(self, title: str, rows: Iterable[tuple[str, int, str]]) -> None:
        """The summary: what, how many, and what that means."""
        table = Table(title=title, title_justify="left", title_style="bold", show_header=False)
        table.add_column()
        table.add_column(justify="right", style="bold")
        table.add_column(style="dim")
        for what, number, note in rows:
            table.add_row(what, str(number), note)
        self.console.print(table, soft_wrap=False)


def _draw(view: View) -> Group:
    table = Table(expand=False)
    for heading in ("process", "state"):
        table.add_column(heading)
    for heading in ("in flight", "running", "finished"):
        table.add_column(heading, justify="right")
    for row in view.rows:
        numbers = (row.in_flight, row.running, row.finished)
        style = "red" if row.state == "killed" else ""
        cells = ["" if number is None else str(number) for number in numbers]
        table.add_row(row.title, row.state, *cells, style=style)
    progress = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=max(1, view.total), completed=view.finished, width=30)
    count = f"{view.finished} of {view.total} jobs finished, {view.waiting} on the queue"
    progress.add_row(bar, count)
    return Group(table, progress)
