"""``celery superfetch slots``: where prefixes lie in a cluster."""

from __future__ import annotations

import click

from .session import Session, command, superfetch


@command(superfetch, "slots")
@click.argument("prefixes", nargs=-1, metavar="[PREFIX]...")
def slots(session: Session, prefixes: tuple[str, ...]) -> None:
    """Show in which slot and on which node of a cluster each PREFIX lies; by default the app's own.

    Apps, or groups of queues, share the work of a cluster when their prefixes lie on several nodes.
    """
    from ..store.wire.slots import whereabouts

    found = whereabouts(
        session.reaper.database.client, prefixes or (session.reaper.config.global_keyprefix,)
    )
    tables = session.tables
    session.say({"prefixes": found}, lambda: tables.table(("Prefix", "Slot", "Node"), found))
