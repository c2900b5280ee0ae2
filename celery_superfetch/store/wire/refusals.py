"""Which commands the server refuses to a client, found out without executing any of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from redis import Redis

from .scripts import CHECKOUT, asked
from .server import is_passing


def refusals(
    client: Redis, never: str, lines: Iterable[str], keys: Iterable[str]
) -> list[tuple[str, str, Exception]] | None:
    """Queue commands in a transaction that is never executed; return those that are refused. As it
    queues, the server checks permissions alone. ``ACL DRYRUN`` would need a permission of its own,
    and Redis 7. If the process dies meanwhile, nothing was done.

    Args:
        never: a key that never exists; ``K`` in a line stands for it.
        lines: commands with arguments that make them complete; ``|`` is before a sub-command.
        keys: keys whose length is asked for, too.

    Returns:
        Line, key and the server's error of each that is refused; None if ``MULTI`` is.
    """
    looks = [(line, never) for line in lines] + [("llen K", key) for key in keys]
    connection: Any = client.connection_pool.get_connection(*CHECKOUT)
    try:
        begun, *replies = asked(connection, ["MULTI"], *(_words(*look) for look in looks))
    finally:
        connection.disconnect()  # and with it goes the transaction
        client.connection_pool.release(connection)
    if isinstance(begun, Exception):
        return None
    # A full server, or a replica, refuses writes as they are queued; that passes.
    return [
        (line, key, reply)
        for (line, key), reply in zip(looks, replies, strict=True)
        if isinstance(reply, Exception) and not is_passing(reply)
    ]


def _words(line: str, key: str) -> list[str]:
    name, *arguments = line.split()
    return [*name.split("|"), *(key if word == "K" else word for word in arguments)]
