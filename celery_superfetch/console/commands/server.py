"""``celery superfetch server``: prints the state of the Redis server; it only reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
from celery.bin.base import CeleryCommand

from ...cli.session import Session, in_session
from ...cli.tables import BOLD, STYLES, Tables
from ..server import figures, is_large, largest_of, refused_of, server_of, size_of


@click.command(name="server", cls=CeleryCommand)
@in_session
def server(session: Session) -> None:
    """Show the state of the Redis server.

    It shows memory, persistence, connections, replicas and refused commands.
    """
    document = server_of(session.inspector, refused_of(session.inspector))
    session.say(document, lambda: print_server(session.tables, document))


def print_server(tables: Tables, document: Mapping[str, Any]) -> None:
    """Print a document of ``server_of``."""
    for finding in document["findings"]:
        level, fix = finding["level"], finding["fix"]
        tables.line(f"{level.capitalize()} [{finding['code']}]: {finding['text']}.", STYLES[level])
        if fix:
            tables.line(f"  Fix: {fix}.")
        tables.say(f"  {finding['runbook']}")
    if document["findings"]:
        tables.line()
    rows = [{"figure": figure.title, "value": figure.text} for figure in figures(document)]
    tables.table(("Figure", "Value"), rows)
    memory = document["memory"]
    tables.line()
    if memory["unknown"]:
        tables.line(f"What fills the memory is unknown: {memory['unknown']}.")
        return
    tables.line("What fills the memory, about, the largest part first:", BOLD)
    parts = [
        {"part": part["title"], "memory": size_of(part), "largest": largest_of(part) or None}
        for part in memory["parts"]
    ]
    tables.table(("Part", "Memory", "Largest"), parts, ("Largest",))
    for part in [part for part in memory["parts"] if part["bytes"] is None or is_large(part)]:
        tables.line(f"{part['title']}: {part['hint']}.")
