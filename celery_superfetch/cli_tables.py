"""The CLI's output for people; for programs there is ``--json``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .arguments import arguments
from .cli_status import utc
from .dead_job import DeadJob

#: Columns where stdout is no terminal: enough that a pipe gets every row uncut on one line.
PIPE_WIDTH = 10_000

#: Characters of a job's id on a terminal; a start is as good as the whole to every command.
SHORT_ID = 12

#: Characters of a job's arguments in a list; `dead show` has more of them.
LIST_ARGS = 80


class Tables:
    """Prints tables to stdout.

    Arguments:
        no_color: plain text also on a terminal.
    """

    def __init__(self, no_color: bool = False) -> None:
        self.console = Console(no_color=no_color, highlight=False, markup=False, emoji=False)
        if not self.console.is_terminal:
            self.console = Console(
                width=PIPE_WIDTH, no_color=True, highlight=False, markup=False, emoji=False
            )

    def line(self, text: str) -> None:
        """One line, as long as it is."""
        self.console.print(_text(text), soft_wrap=True)

    def status(self, found: dict[str, Any]) -> None:
        """All of ``superfetch status``."""
        self._owners(found["owners"])
        tombs = found["tombstones"]
        self.line(f"Tombstones: {tombs['owners']}, with {tombs['in_flight']} jobs in flight\n")
        self._queues(found["queues"])
        if found["unacked"]:
            self.line(f"Unacked by stock workers: {found['unacked']} jobs\n")
        dead = found["dead_set"]
        self.line(f"Dead set: {dead['size']} jobs, {dead['unannounced']} unannounced\n")
        counters = _table("Counter", "Number")
        for name, number in found["counters"].items():
            _row(counters, name, number)
        self._print(counters)

    def _owners(self, owners: Sequence[dict[str, Any]]) -> None:
        table = _table(
            "Owner", "Host", "Pid", "App", "State", "Heartbeat", "In flight", "Verdict", "Reason"
        )
        for row in owners:
            _row(
                table,
                row["owner"],
                row["host"],
                row["pid"],
                row["app"],
                row["state"],
                f"{row['heartbeat_age']:.1f} s ago",
                row["in_flight"],
                Text(row["verdict"], style="green" if row["verdict"] == "alive" else "bold red"),
                row["reason"],
            )
        self._print(table, "No owners are registered.")

    def _queues(self, lists: Sequence[dict[str, Any]]) -> None:
        """A row for each queue, a column for each priority step."""
        steps = sorted({row["priority"] for row in lists})
        table = _table("Queue", *(f"Priority {step}" for step in steps))
        queues: dict[str, dict[int, Any]] = {}
        for row in lists:
            length = row["length"]
            if length is None:
                cell: object = Text(row["error"], style="bold red")
            elif row["probation"]:
                cell = Text(f"{length} (+{row['probation']} on probation)", style="yellow")
            else:
                cell = length
            queues.setdefault(row["queue"], {})[row["priority"]] = cell
        for name, lengths in queues.items():
            _row(table, name, *(lengths.get(step, "") for step in steps))
        self._print(table)

    def dead_jobs(
        self, size: int, first: int, jobs: Sequence[DeadJob], more: bool, picked: bool
    ) -> None:
        """One page of the dead set."""
        table = _table(
            "Id", "Died", "Task", "Task id", "Queue", "Strikes", "Recoveries", "Reason", "Args"
        )
        for job in jobs:
            args = " ".join(filter(None, arguments(job.payload)))
            _row(
                table,
                self._short(job.id),
                utc(job.died_at / 1000),
                job.task or "(unparseable)",
                job.task_id,
                job.queue_list,
                job.strikes,
                job.recoveries,
                job.reason,
                args if len(args) <= LIST_ARGS else f"{args[: LIST_ARGS - 3]}...",
            )
        if jobs:
            self._print(table)
            last = first + len(jobs)
            rest = f" More: --first {last}." if more else ""
            end = (
                f"{last} of those that meet the conditions" if picked else f"{last} of {size} jobs"
            )
            self.line(f"{first + 1} to {end}, the newest first.{rest}")
        elif picked and size:
            self.line(f"None of the {size} jobs from number {first + 1} on meets the conditions.")
        else:
            self.line("The dead set is empty." if not size else f"It has only {size} jobs.")

    def _short(self, id: str) -> str:
        """A second item of the same bytes is told apart by the end of its id alone."""
        return id[:SHORT_ID] if self.console.is_terminal and "-" not in id else id

    def dead_job(self, job: dict[str, Any]) -> None:
        """One job of the dead set, field by field, and its payload as it is."""
        fields = [
            ("Id", "id"),
            ("Task", "task"),
            ("Task id", "task_id"),
            ("App", "app"),
            ("Queue", "queue"),
            ("Time of death", "time_of_death"),
            ("Reason", "reason"),
            ("Owner", "owner"),
            ("Strikes", "strikes"),
            ("Recoveries", "recoveries"),
            ("Args", "args"),
            ("Kwargs", "kwargs"),
        ]
        for title, name in fields:
            value = job[name]
            self.line(f"{title + ':':<15}{'-' if value is None else value}")
        self.line("\nHistory, the oldest first:")
        table = _table("Time", "Host", "Owner", "Strike", "Exit status", "Reason")
        for entry in job["history"]:
            _row(
                table,
                entry["time"],
                entry["host"],
                entry.get("owner"),
                _strike(entry["strike"]),
                entry["status"],
                entry.get("reason"),
            )
        self._print(table)
        coded = " (base64)" if job["encoding"] == "base64" else ""
        self.line(f"Payload{coded}:\n{job['payload']}")

    def _print(self, table: Table, empty: str = "") -> None:
        if table.row_count:
            self.console.print(table)
        elif empty:
            self.line(empty)


def _table(*columns: str) -> Table:
    """Cells fold where they do not fit: nothing is ever cut."""
    table = Table(header_style="bold", title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _row(table: Table, *cells: object) -> None:
    table.add_row(*(cell if isinstance(cell, Text) else _text(cell) for cell in cells))


def _text(value: object) -> Text:
    """Escape what a terminal would obey: queue names and payloads hold anything."""
    text = "" if value is None else str(value)
    return Text(
        "".join(
            c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
        )
    )


def _strike(value: object) -> str:
    """Exact, suspect or none; earlier versions wrote 1 or 0."""
    return value if isinstance(value, str) else "yes" if value else ""
