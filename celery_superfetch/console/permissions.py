"""The commands that a worker needs; which of them the server forbids, or does not know."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from redis.exceptions import NoPermissionError

from ..inspector import Inspector

#: Beside kombu's own, those of the scripts among them; each with arguments that make it complete.
#: ``|`` is before a sub-command, as in an ACL, and K stands for a key.
REQUIRED = (
    """
evalsha 0 0;eval x 0;blmove K K LEFT RIGHT 1;time;get K;set K 0;exists K;del K;type K
lpop K;rpop K;lpush K 0;rpush K 0;lmove K K LEFT RIGHT;lrange K 0 0;lindex K 0;llen K
zadd K 0 0;zrem K 0;zcard K;zscore K 0;zrange K 0 0;zrangebyscore K 0 0;zremrangebyscore K 0 0
zremrangebyrank K 0 0;zscan K 0;hget K 0;hset K 0 0;hsetnx K 0 0;hdel K 0;hincrby K 0 1;hgetall K
hmget K 0;hexists K 0;hstrlen K 0;hlen K;hkeys K;sadd K 0;srem K 0;smembers K;sismember K 0
expire K 1;pexpire K 1;ttl K;pttl K
""".strip()
    .replace("\n", ";")
    .split(";")
)

#: Those that it works without, and what is lost then (docs/reference/options.md says more).
OPTIONAL = {
    "client|id": "a dead worker of another host is found after owner_ttl, not two heartbeats",
    "client|list": "a dead worker of another host is found after owner_ttl, not two heartbeats; a "
    "reaped worker's connections are not cut",
    "client|setinfo lib-name x": "`migrate` may take our connections for a stock worker's",
    "client|kill ID 0": "a reaped worker's blocking read may claim once more",
    "client|unblock 0": "a job may wait up to 20 s for a worker that calls its reads off",
    "client|tracking OFF": "where few workers are idle a job may wait for a second",
    "zlexcount K - +": "workers do not share their queue lists; a job may wake several",
    "zrevrangebylex K + -": "workers do not share their queue lists; a job may wake several",
    "info": "the server is not checked, and a dead worker of another host is found later",
    "config|get save": "nobody sees whether the server saves its data",
    "scan 0": "private lists that nobody registered are not found",
    # Nor do workers need these, but whoever calls our commands.
    "scard K": "`status`, `check` and the metrics are refused",
    "zcount K 0 0": "`status`, `check` and the metrics are refused",
    "persist K": "`dead retry` is refused, and forgets the failure that the caller was told",
    "zmscore K 0": "`migrate` is refused",
    "object|idletime K": "`doctor` does not say how old jobs on unknown queues are",
}


class Refused(NamedTuple):
    required: list[str]
    optional: dict[str, str]  # command -> what is lost without it
    names: list[str]  # keys
    #: Of those commands the ones that no user may use: the server, or a service, leaves them out.
    unknown: frozenset[str] = frozenset()


def name_of(line: str) -> str:
    """A command as an ACL has it."""
    return line.partition(" ")[0]


def refused(inspector: Inspector, queue_lists: Iterable[str]) -> Refused | None:
    """Return which commands that a worker needs, and which of its queue lists, the server refuses
    to the inspector's user; None if that cannot be found out. It changes nothing."""
    denied = inspector.refusals([*REQUIRED, *OPTIONAL], queue_lists)
    if denied is None:
        return None
    keys_alone = [key for _, key, why in denied if _is_of_keys(why)]
    lines = [(line, why) for line, _, why in denied if not _is_of_keys(why)]
    unknown = [name_of(line) for line, why in lines if not isinstance(why, NoPermissionError)]
    return Refused(
        list(dict.fromkeys(name_of(line) for line, _ in lines if line not in OPTIONAL)),
        {name_of(line): OPTIONAL[line] for line, _ in lines if line in OPTIONAL},
        list(dict.fromkeys(keys_alone)),
        frozenset(unknown),
    )


def _is_of_keys(why: Exception) -> bool:
    """Return whether a refusal is of the key, and not of the command."""
    return isinstance(why, NoPermissionError) and "to run the" not in str(why)
