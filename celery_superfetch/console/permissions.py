"""The commands that a worker needs, and those of them that the server forbids or does not know.

`superfetch doctor` and `server` call ``refused``; the docs list the commands. It changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from redis.exceptions import NoPermissionError

from ..inspector import Inspector
from .finding import Finding, some

#: Commands in addition to kombu's, with those of the scripts; each with arguments that make it
#: complete. ``|`` stands before a sub-command, as in an ACL, and K for a key.
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

#: Commands that a worker can do without -> the loss (docs/reference/options.md says more).
OPTIONAL = {
    "client|id": "a dead worker of another host is declared dead after owner_ttl, not two "
    "heartbeats",
    "client|list": "a dead worker of another host is declared dead after owner_ttl, not two "
    "heartbeats; the connections of a worker declared dead are not closed",
    "client|setinfo lib-name x": (
        "`migrate` may take connections of superfetch for those of stock workers"
    ),
    "client|kill ID 0": "a blocking read of a worker declared dead may claim once more",
    "client|unblock 0": "a job that arrives at a busy worker is requeued, and solo workers open "
    "their blocking reads again after each run",
    "client|tracking OFF": "where few workers are idle, a job may wait for a second",
    "zlexcount K - +": "workers do not share their queue lists; a job may wake several",
    "zrevrangebylex K + -": "workers do not share their queue lists; a job may wake several",
    "info": "the server is not checked, and a dead worker of another host is declared dead later",
    "config|get save": "it is not known whether the server saves its data",
    "scan 0": "private lists of unregistered workers are not found",
    # Workers do not need these, but the users of this package's commands do.
    "scard K": "`status`, `check` and the metrics are refused",
    "zcount K 0 0": "`status`, `check` and the metrics are refused",
    "persist K": "`dead retry` is refused, and deletes the failure that the caller was told",
    "zmscore K 0": "`migrate` is refused",
    "memory|usage K": "`server` does not say what fills the memory",
    "object|idletime K": "`doctor` does not say how old jobs on unknown queues are",
}


class Refused(NamedTuple):
    """The commands and keys that the server refuses to one user."""

    required: list[str]
    optional: dict[str, str]  # command -> the loss without it
    names: list[str]  # keys
    #: Those of the commands that the server, or a service, does not have for any user.
    unknown: frozenset[str] = frozenset()


def name_of(line: str) -> str:
    """Return the name of a command as an ACL has it."""
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
    """Return whether the server refuses the key, and not the command."""
    return isinstance(why, NoPermissionError) and "to run the" not in str(why)


def findings_of_permissions(denied: Refused | None) -> Iterator[Finding]:
    """Yield a finding for the commands and keys that the server refuses; none if that is not
    known."""
    if denied is None:
        return
    who, unknown = "the server's ACL forbids this user", denied.unknown
    if forbidden := [name for name in denied.required if name not in unknown]:
        grant = " ".join(f"+{name}" for name in sorted(forbidden))
        text = f"{who} {some(forbidden)}: workers of this user cannot work"
        yield Finding("critical", "acl-required", text, f"ACL SETUSER <name> {grant}")
    if missing := [name for name in denied.required if name in unknown]:
        text = f"the server does not support {some(missing)}: workers cannot work with it"
        fix = "see which services are tested: docs/run/managed_redis"
        yield Finding("critical", "missing-required", text, fix)
    if denied.names:
        text = f"{who} to use the keys {some(denied.names)}"
        fix = (
            "grant the keys of superfetch, of the queues and of kombu: docs/reference/options, "
            "Permissions"
        )
        yield Finding("critical", "acl-keys", text, fix)
    for name, lost in denied.optional.items():
        if name in unknown:
            fix = "no action needed if that is acceptable; otherwise use another plan or service"
            text = f"the server does not support {name}: {lost}"
            yield Finding("note", "missing-optional", text, fix)
        else:
            fix = f"ACL SETUSER <name> +{name}"
            yield Finding("note", "acl-optional", f"{who} {name}: {lost}", fix)
