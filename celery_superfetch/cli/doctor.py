"""``celery superfetch doctor``: what is wrong, or may become so, each with its fix."""

from __future__ import annotations

import click

from .session import Session, command, know_tasks, superfetch


@command(superfetch, "doctor")
def doctor(session: Session) -> None:
    """Examine the app and the server: each finding with its fix. Only reads."""
    from ..operate.doctor import diagnose
    from .status_tables import STYLES

    know_tasks(session.app)
    found = diagnose(session.app, session.reaper)

    def say() -> None:
        line = session.tables.line
        for one in found:
            line(f"{one.level.capitalize()} [{one.code}]: {one.text}.", STYLES[one.level])
            line(f"  Fix: {one.fix or 'nothing is to be done'}.")
        if not found:
            line("Nothing is wrong with the app or the server.")

    session.say({"findings": [one._asdict() for one in found]}, say)
    if any(one.level != "note" for one in found):
        raise click.exceptions.Exit(1)
