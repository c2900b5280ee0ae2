"""The CLI's output for people; for programs there is ``--json``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..model.arguments import cut, printable

#: Columns where stdout is no terminal: enough that a pipe gets every row uncut on one line.
PIPE_WIDTH = 10_000

#: Characters of a job's id on a terminal; a start is as good as the whole to every command.
SHORT_ID = 12

#: Characters of a job's arguments in a list; `dead show` has more of them.
LIST_ARGS = 80

# A title in lower case is the name of what stands under it.
OWNER = ("Owner", "Host", "Pid", "App", "State", "Heartbeat", "In flight", "Verdict", "Reason")
DEAD_JOB = ("Id", "Died", "Task", "Task id", "Queue", "Strikes", "Recoveries", "Reason", "Args")
DETAILS = ("Id", "Task", "Task id", "App", "Queue", "Time of death", "Reason", "Owner", "Strikes")
EVENT = ("Time", "Host", "Owner", "Strike", "Exit status", "Reason")


class Tables:
    """Prints tables to stdout.

    Arguments:
        no_color: plain text also on a terminal.
    """

    def __init__(self, no_color: bool = False) -> None:
        self.console = Console(no_color=no_color, highlight=False, markup=False, emoji=False)
        if not self.console.is_terminal:
            self.console.width = PIPE_WIDTH

    def line(self, text: str) -> None:
        """One line, as long as it is."""
        self.console.print(_text(text), soft_wrap=True)

    def status(self, found: dict[str, Any]) -> None:
        """All of ``superfetch status``."""
        if found["owners"]:
            self._table(OWNER, map(_owner, found["owners"]))
        else:
            self.line("No owners are registered.")
        tombs = found["tombstones"]
        self.line(f"Tombstones: {tombs['owners']}, with {tombs['in_flight']} jobs in flight\n")
        self._queues(found["queues"])
        if found["unacked"]:
            self.line(f"Unacked by stock workers: {found['unacked']} jobs\n")
        dead = found["dead_set"]
        self.line(f"Dead set: {dead['size']} jobs, {dead['unannounced']} unannounced\n")
        counters = found["counters"].items()
        self._table(("Counter", "Number"), ({"counter": c, "number": n} for c, n in counters))

    def _queues(self, lists: Sequence[dict[str, Any]]) -> None:
        """A row for each queue, a column for each priority step."""
        queues: dict[str, dict[str, Any]] = {}
        for row in lists:
            cell = row["length"]
            if cell is None:
                cell = Text(row["error"], style="bold red")
            elif row["probation"]:
                cell = Text(f"{cell} (+{row['probation']} on probation)", style="yellow")
            columns = queues.setdefault(row["queue"], {"queue": row["queue"]})
            columns[f"priority_{row['priority']}"] = cell
        steps = sorted({row["priority"] for row in lists})
        self._table(("Queue", *(f"Priority {step}" for step in steps)), queues.values())

    def dead_jobs(
        self, size: int, first: int, jobs: Sequence[dict[str, Any]], more: bool, picked: bool
    ) -> None:
        """One page of the dead set."""
        if jobs:
            self._table(DEAD_JOB, map(self._dead_job, jobs))
            last = first + len(jobs)
            of = "those that meet the conditions" if picked else f"{size} jobs"
            rest = f" More: --first {last}." if more else ""
            self.line(f"{first + 1} to {last} of {of}, the newest first.{rest}")
        elif picked and size:
            self.line(f"None of the {size} jobs from number {first + 1} on meets the conditions.")
        else:
            self.line("The dead set is empty." if not size else f"It has only {size} jobs.")

    def _dead_job(self, job: dict[str, Any]) -> dict[str, Any]:
        id = job["id"]
        # A second item of the same bytes is told apart by the end of its id alone.
        return {
            **job,
            "id": id[:SHORT_ID] if self.console.is_terminal and "-" not in id else id,
            "died": job["time_of_death"],
            "task": job["task"] or "(unparseable)",
            "args": cut(f"{job['args']} {job['kwargs']}".strip(), LIST_ARGS),
        }

    def dead_job(self, job: dict[str, Any]) -> None:
        """One job of the dead set, field by field, and its payload as it is."""
        for title in (*DETAILS, "Recoveries", "Args", "Kwargs"):
            value = job[_name(title)]
            self.line(f"{title + ':':<15}{'-' if value is None else value}")
        self.line("\nHistory, the oldest first:")
        self._table(EVENT, ({**event, "exit_status": event["status"]} for event in job["history"]))
        coded = " (base64)" if job["encoding"] == "base64" else ""
        self.line(f"Payload{coded}:\n{job['payload']}")

    def _table(self, titles: Sequence[str], rows: Iterable[Mapping[str, object]]) -> None:
        """Cells fold where they do not fit: nothing is ever cut."""
        table = Table(header_style="bold")
        for title in titles:
            table.add_column(title, overflow="fold")
        for row in rows:
            table.add_row(*(_text(row.get(_name(title))) for title in titles))
        if table.row_count:
            self.console.print(table)


def _owner(row: dict[str, Any]) -> dict[str, Any]:
    style = "green" if row["verdict"] == "alive" else "bold red"
    return {
        **row,
        "heartbeat": f"{row['heartbeat_age']:.1f} s ago",
        "verdict": Text(row["verdict"], style),
    }


def _name(title: str) -> str:
    return title.lower().replace(" ", "_")


def _text(value: object) -> Text:
    return value if isinstance(value, Text) else Text(printable(value))
