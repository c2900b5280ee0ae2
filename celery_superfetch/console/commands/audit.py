"""``celery superfetch audit``: lists the changes that operators made; it only reads."""

from __future__ import annotations

from typing import Any

import click

from ...cli.session import Session, in_session, quantity
from ...cli.tables import STYLES
from ...model.humanize import ago
from ..audit import audit_of, mood_of, outcome_of

AUDIT_TITLES = ("When", "By", "Action", "Subject", "State", "Outcome")
AUDIT_SPARE = ("State",)


@click.command(name="audit")
@quantity("--first", click.IntRange(0), 0, "N", "Skip this many of the newest entries.")
@quantity("--count", click.IntRange(1), 50, "N", "Show this many entries.")
@click.option("--wide", is_flag=True, help="Show all columns, each entry on one line.")
@in_session
def audit(session: Session, first: int, count: int, wide: bool) -> None:
    """List the changes that operators made, and who made them.

    These are retries, deletes, revokes, pauses, stops and rollbacks, for example.
    """
    document = audit_of(session.inspector, first, count)

    def text() -> None:
        tables = session.tables
        if wide:
            tables.widen()
        rows = [_shown(row, document["server_time"], tables.wide) for row in document["entries"]]
        tables.table(AUDIT_TITLES, rows, AUDIT_SPARE)
        if rows:
            further = f" More: --first {document['next']}." if document["next"] else ""
            span = f"{first + 1} to {first + len(rows)} of {document['size']}"
            tables.line(f"{span}, the newest first.{further}")
        else:
            tables.line("No change is on the audit list.")

    session.say(document, text)


def _shown(row: dict[str, Any], now: str, is_wide: bool) -> dict[str, object]:
    when = row["at"] if is_wide or not row["at"] else ago(row["at"], now)
    state = (row["state"], STYLES[mood_of(row["state"])])
    return {**row, "when": when, "state": state, "outcome": outcome_of(row)}
