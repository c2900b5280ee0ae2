"""Finds out which commands the ACL of the server refuses to this connection's Redis user, without
executing any of them.

`superfetch doctor` calls it, through ``Database.refusals``. The commands are queued in a
transaction that is never executed: if the process dies meanwhile, the server discards the
transaction, and nothing was done.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from redis import Redis

from .pipeline import CHECKOUT, asked
from .server import is_temporary


def refusals(
    client: Redis, never: str, lines: Iterable[str], keys: Iterable[str]
) -> list[tuple[str, str, Exception]] | None:
    """Queue commands in a transaction that is never executed; return those that are refused. When
    the server queues a command, it checks its permissions and the number of its arguments. ``ACL
    DRYRUN`` would need a permission of its own, and Redis 7.

    Arguments:
        never: a key that never exists, which stands for any key of the package.
        lines: commands, such as "llen K" or "client|id": ``K`` stands for ``never``; ``|`` is
            before a sub-command, as in Redis's ACL rules. They have enough arguments to be
            complete.
        keys: keys whose permission is checked, each with "llen K".

    Returns:
        line, key and the server's error of each refused command; None: ``MULTI`` itself is refused.
    """
    checks = [(line, never) for line in lines] + [("llen K", key) for key in keys]
    connection: Any = client.connection_pool.get_connection(*CHECKOUT)
    try:
        begun, *replies = asked(connection, ["MULTI"], *(_words(*check) for check in checks))
    finally:
        connection.disconnect()  # the server discards the transaction
        client.connection_pool.release(connection)
    if isinstance(begun, Exception):
        return None
    # A server over its memory limit, or a replica, refuses writes as well (``is_temporary``). That
    # is no matter of permissions.
    return [
        (line, key, reply)
        for (line, key), reply in zip(checks, replies, strict=True)
        if isinstance(reply, Exception) and not is_temporary(reply)
    ]


def _words(line: str, key: str) -> list[str]:
    """Split a line into the words of the command, with ``key`` in the place of ``K``."""
    name, *arguments = line.split()
    return [*name.split("|"), *(key if word == "K" else word for word in arguments)]
