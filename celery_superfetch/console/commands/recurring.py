"""``celery superfetch recurring``: lists the entries of the app's beat; it only reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from ...cli.session import Session, in_session, know_tasks
from ...model.humanize import ago, ahead
from ..recurring import next_of, notes_of, recurring_of

ENTRY_TITLES = ("Name", "Task", "Schedule", "Last run", "Next run", "Queue")
NOT_KNOWN = "not recorded"


@click.command(name="recurring")
@in_session
def recurring(session: Session) -> None:
    """List the tasks of beat_schedule, and whether beat is alive."""
    know_tasks(session.app)
    document = recurring_of(session.app, session.inspector)

    def text() -> None:
        now = document["server_time"]
        rows = [_shown(entry, now, session.tables.wide) for entry in document["entries"]]
        session.tables.table(ENTRY_TITLES, rows, ("Queue", "Task"))
        if document["left_out"]:
            session.tables.line(f"and {document['left_out']} more")
        for line in notes_of(document):
            session.tables.line(f"{line}.")

    session.say(document, text)


def _shown(entry: Mapping[str, Any], now: str, is_wide: bool) -> dict[str, object]:
    last, then = entry["last"], entry["next"]
    if not is_wide:
        last, then = last and ago(last, now), then and ahead(then, now)
    times = {"last_run": last or NOT_KNOWN, "next_run": then or next_of(entry) or NOT_KNOWN}
    return {**entry, **times}
