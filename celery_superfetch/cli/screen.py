"""What ``celery superfetch top`` shows: a pure function of what was found and where one looks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.text import Text

from ..operate.words import number, span
from .status_tables import print_status
from .tables import DEAD_JOB, DEAD_SPARE, Tables

CURSOR = ">"  # stands before the job that is chosen

#: What can be looked at -> the keys that can be pressed there.
KEYS = {
    "status": "d dead set   R reap   up, down scroll   ? help   q quit",
    "dead": "up, down choose   s show   r retry   ? help   q back",
    "job": "up, down scroll   r retry   ? help   q back",
    "help": "q back",
}

HELP = """\
Here:
  d          look at the dead set
  R          reap once, now: what dead workers held goes back to its queue
  up, down   scroll, or choose; k and j do the same
  q          quit, or go back

In the dead set:
  s, Enter   show the job with its history
  r          put it back on its queue, as if it were new
  Esc, q     go back

Nothing is changed before y is pressed. `celery superfetch dead --help` has all
that can be done with dead jobs."""


@dataclass
class State:
    """Where one looks, and what one is told."""

    view: str = "status"
    #: Of each view: the first line that is shown; of the dead set: the row with the cursor.
    at: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KEYS, 0))
    #: The newest jobs of the dead set, when that was (server ms), and how many there are.
    jobs: Sequence[dict[str, Any]] = ()
    now: int = 0
    size: int = 0
    said: str = ""  # what was done, or went wrong
    question: str = ""  # waits for y ...
    act: Callable[[], object] = str  # ... and what is done then
    #: Why the server could not be asked, and for how many seconds it has not answered.
    error: str = ""
    silent: float = 0.0
    no_color: bool = False

    @property
    def chosen(self) -> dict[str, Any] | None:
        """The job at the cursor, which stays within the list."""
        jobs = self.jobs  # another thread puts a new list in its place
        self.at["dead"] = at = max(0, min(self.at["dead"], len(jobs) - 1))
        return jobs[at] if jobs else None


def render(overview: Mapping[str, Any] | None, state: State, size: tuple[int, int]) -> Text:
    """What a terminal of so many columns and lines shows; it keeps ``state.at`` within the text."""
    columns, lines = size
    tables = Tables(state.no_color, columns)

    def drawn(draw: Callable[..., object], *what: object) -> list[Text]:
        with tables.console.capture() as printed:
            draw(*what)
        text = Text.from_ansi(printed.get().rstrip("\n"))
        return list(text.split("\n", allow_blank=True))

    head, foot = [], drawn(tables.line, state.said) if state.said else []
    if state.error:
        silent = f"for {span(state.silent)} and is asked again"
        told = f"The server has not answered {silent}: {state.error}"
        head = drawn(tables.line, told, "bold red")
    if state.question:
        foot = drawn(tables.line, f"{state.question} [y/N]", "bold yellow")
    foot += drawn(tables.line, KEYS[state.view], "reverse")
    body = drawn(_draw, tables, overview, state)
    body = _window(body, state, max(1, lines - len(head) - len(foot)))
    return Text("\n", no_wrap=True, end="").join([*head, *body, *foot][:lines])


def _draw(tables: Tables, overview: Mapping[str, Any] | None, state: State) -> None:
    if state.view == "help":
        tables.line(HELP)
    elif state.view == "job" and state.chosen:
        tables.dead_job(state.chosen)
    elif state.view == "dead":
        tables.line(f"The dead set, the newest of {number(state.size, 'job')} first:")
        chosen = state.chosen
        rows = [_listed(tables.dead_row(job, state.now), job is chosen) for job in state.jobs]
        tables.table(("", *DEAD_JOB), rows, DEAD_SPARE)
    elif overview is None:
        tables.line("Asking the server ...")
    else:
        print_status(tables, dict(overview), wide=False)


def _listed(row: dict[str, Any], chosen: bool) -> dict[str, Any]:
    row[""] = CURSOR if chosen else ""
    return {name: (value, "bold") for name, value in row.items()} if chosen else row


def _window(body: list[Text], state: State, room: int) -> list[Text]:
    """So many lines of the text: from where one has scrolled to, or around the cursor."""
    if state.view == "dead":
        row = next((n for n, line in enumerate(body) if line.plain.startswith(CURSOR)), 0)
        first = max(0, row - room + 2)
    else:
        first = state.at[state.view] = max(0, min(state.at[state.view], len(body) - room))
    shown = body[first : first + room]
    if first + room < len(body):
        shown[-1] = Text(f"... {number(len(body) - first - room + 1, 'more line')}", "dim")
    return shown + [Text()] * (room - len(shown))
