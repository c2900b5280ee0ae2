"""``celery superfetch dead export`` and ``import``: the dead set as a file of JSON lines."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from .cli_dead import conditions, dead
from .cli_session import Session, command

if TYPE_CHECKING:
    from .dead_lines import Imported

#: Refused lines that are named one by one; a file of another kind has no end of them.
NAMED = 20


@command(dead, "export")
@conditions
@click.argument("file", metavar="FILE|-")
def dead_export(session: Session, file: str, **conditions: Any) -> None:
    """Write killed jobs, whole, to a new FILE (-: stdout), one JSON object a line.

    The dead set stays as it is.
    """
    lines = session.dead_set.export_lines(**conditions)
    if file == "-":
        if session.as_json:
            raise click.UsageError("with --json stdout is for the report: name a file")
        number = _write(sys.stdout, lines)
        click.echo(f"Exported {number} jobs.", err=True)
        return
    number = _to_new_file(file, lines)
    session.say({"exported": number, "file": file}, lambda: click.echo(f"Exported {number} jobs."))


@command(dead, "import")
@click.argument("file", metavar="FILE|-")
def dead_import(session: Session, file: str) -> None:
    """Put the jobs of an exported FILE (-: stdin) into the dead set, as they were.

    What is there already stays as it is; nothing is dropped for what comes.
    """
    try:
        with click.open_file(file, "rb") as stream:
            done = session.dead_set.import_lines(stream)
    except OSError as exc:
        raise click.ClickException(f"{file}: {exc.strerror}") from exc
    session.say(done.as_dict(), lambda: _imported(done))
    _refused(done)


def _to_new_file(file: str, lines: Iterable[str]) -> int:
    """Write a file that is not there yet; half of one is not left behind."""
    try:
        # Payloads may hold what is nobody else's business.
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as exc:
        raise click.ClickException(f"{file} is there already; nothing was written") from exc
    except OSError as exc:
        raise click.ClickException(f"{file}: {exc.strerror}") from exc
    try:
        with open(handle, "w", encoding="utf-8") as stream:
            return _write(stream, lines)
    except BaseException as exc:
        with contextlib.suppress(OSError):
            os.unlink(file)
        if isinstance(exc, OSError):
            raise click.ClickException(f"{file}: {exc.strerror}; nothing is left of it") from exc
        raise


def _write(stream: Any, lines: Iterable[str]) -> int:
    number = 0
    for number, line in enumerate(lines, 1):  # noqa: B007 - the last one counts
        stream.write(line)
    return number


def _imported(done: Imported) -> None:
    present = f", {done.present} were there already" if done.present else ""
    click.echo(f"Imported {done.imported} jobs{present}.")


def _refused(done: Imported) -> None:
    for line, error in list(done.refused.items())[:NAMED]:
        click.echo(f"Error: line {line}: {error}", err=True)
    if len(done.refused) > NAMED:
        click.echo(f"Error: and {len(done.refused) - NAMED} more lines", err=True)
    if done.refused:
        click.echo("Nothing of these lines was imported; the file has them still.", err=True)
        raise click.exceptions.Exit(1)
