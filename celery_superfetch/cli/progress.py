"""Progress of a long command, on stderr: the document of ``--json`` is alone on stdout."""

from __future__ import annotations

import sys
from time import monotonic

import click

STEP = 1000  # jobs after which a program that reads stderr hears of it; a person: each batch
PAUSE = 10.0  # seconds after which a program that reads stderr hears that something is waited for


class Progress:
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
        elif done // STEP > before // STEP or is_last:
            click.echo(text, err=True)

    def end(self) -> None:
        """Begin a new line, where the total was not known."""
        if self.done and not self.total and not self._silent and sys.stderr.isatty():
            click.echo(err=True)


class Countdown:
    """Show what is waited for, and for how many seconds more."""

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
            self._next = now + PAUSE
            click.echo(line, err=True)

    def end(self) -> None:
        """Begin a new line."""
        if self._width:
            click.echo(err=True)
