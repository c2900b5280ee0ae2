"""The progress of a long command, on stderr: the document of ``--json`` is alone on stdout.

The commands of this room make a ``ProgressLine`` or a ``Countdown``.
"""

from __future__ import annotations

import sys
from time import monotonic

import click

#: Jobs between two lines for a program that reads stderr; a person sees each batch.
PROGRESS_STEP_JOBS = 1000
#: Seconds between two lines for such a program while the command waits.
PROGRESS_PAUSE_S = 10.0


class ProgressLine:
    """A line on the terminal: the number of jobs that are done (``total`` 0: not known)."""

    def __init__(self, total: int = 0, silent: bool = False, verb: str = "") -> None:
        self.total, self.done, self._silent, self._verb = total, 0, silent, verb

    def __call__(self, done: int) -> None:
        before, self.done = self.done, done
        of = f" of {self.total}" if self.total else ""
        text = f"{self._verb} {done}{of} jobs".lstrip()
        is_last = bool(self.total) and done >= self.total
        if self._silent:
            return
        if sys.stderr.isatty():
            click.echo(f"\r{text}", nl=is_last, err=True)
        elif done // PROGRESS_STEP_JOBS > before // PROGRESS_STEP_JOBS or is_last:
            click.echo(text, err=True)

    def end(self) -> None:
        """Begin a new line, where the total was not known."""
        if self.done and not self.total and not self._silent and sys.stderr.isatty():
            click.echo(err=True)


class Countdown:
    """A line that says what the command waits for, and for how many seconds more."""

    def __init__(self, silent: bool = False) -> None:
        self._silent, self._next, self._width = silent, 0.0, 0

    def __call__(self, text: str, seconds: float) -> None:
        if self._silent:
            return
        line, now = f"{text}, up to {max(0.0, seconds):.0f} s more ...", monotonic()
        if sys.stderr.isatty():
            click.echo(f"\r{line.ljust(self._width)}", nl=False, err=True)
            self._width = len(line)
        elif now >= self._next:
            self._next = now + PROGRESS_PAUSE_S
            click.echo(line, err=True)

    def end(self) -> None:
        """Begin a new line."""
        if self._width:
            click.echo(err=True)
