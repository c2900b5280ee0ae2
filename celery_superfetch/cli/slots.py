"""``celery superfetch slots``: where prefixes lie in a cluster."""

from __future__ import annotations

from typing import Any

import click
from redis.crc import key_slot
from redis.exceptions import ResponseError

from .session import Session, command, superfetch


@command(superfetch, "slots")
@click.argument("prefixes", nargs=-1, metavar="[PREFIX]...")
def slots(session: Session, prefixes: tuple[str, ...]) -> None:
    """Which slot and node of a cluster each PREFIX has; without one, the app's own.

    Apps, or groups of queues, share the work of a cluster when their prefixes lie on several nodes.
    """
    from ..errors import ConfigError
    from ..store.wire.slots import TAGGED

    database = session.reaper.database
    wanted = prefixes or (database.keys.prefix,)
    for prefix in wanted:
        if not TAGGED.match(prefix):
            raise ConfigError(f"prefix {prefix!r} has no name in braces, as {{shop}}: has")
    try:
        served: Any = database.client.cluster("slots")
    except ResponseError as exc:
        raise click.ClickException(f"the broker does not say who serves which slot: {exc}") from exc
    found = []
    for prefix in wanted:
        slot = key_slot(prefix.encode())
        nodes = (row["primary"] for (at, to), row in served.items() if at <= slot <= to)
        host, port = next(nodes, ("nobody", 0))
        found.append({"prefix": prefix, "slot": slot, "node": f"{host}:{port}" if port else None})

    tables = session.tables
    session.say({"prefixes": found}, lambda: tables.table(("Prefix", "Slot", "Node"), found))
