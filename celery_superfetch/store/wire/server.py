"""Checks of the server before the first claim: what cannot work is refused by name."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from redis import VERSION, Redis
from redis.exceptions import (
    BusyLoadingError,
    ClusterCrossSlotError,
    ClusterDownError,
    ConnectionError,
    MasterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)

from ...errors import UnsupportedBroker
from ...model.log_text import one_line_each
from .slots import NO_TAG, TAGGED

logger = one_line_each(logging.getLogger(__name__))
#: Logs a warning once. Texts may name owners, of which new ones come as long as the process lives:
#: it remembers the last 1,000, about 300 kB.
warn_once = lru_cache(maxsize=1000)(logger.warning)

OLDEST_SERVER = (6, 2)  # BLMOVE, RPOP of several and ZADD with LT came with Redis 6.2

#: Before redis-py 6.1 a pool's own thread cannot take its lock twice.
MAY_DEADLOCK = VERSION < (6, 1)
DEADLOCK = (
    f"redis-py {'.'.join(map(str, VERSION))} may stop this process for ever: a garbage collection "
    "that comes while the lock of its connection pool is held waits for that lock"
)
DEADLOCK_FIX = "upgrade to redis-py 6.1 or later, which kombu allows since 5.6: upgrade both"

#: What a server says that takes no write for a while: it has too few replicas, mostly after a
#: failover, or its disk is full.
REFUSES_ALL = "NOREPLICAS", "MISCONF"


@contextmanager
def tried_again() -> Iterator[None]:
    """A worker that connects meanwhile tries again, as where the server is away: by the error's own
    name it would end, and what it runs with it."""
    try:
        yield
    except ResponseError as exc:
        if not any(reason in str(exc) for reason in REFUSES_ALL):
            raise
        text = f"the server refuses all writes at the moment ({str(exc).rstrip('.')})"
        logger.warning("We connect again: %s.", text)
        raise ConnectionError(text) from exc


#: Refusals that pass, by how they begin or by redis-py's class, which cuts the beginning off: the
#: server has too few replicas, a full disk or no memory left, or another one is the primary now.
#: In a transaction redis-py puts the command before it.
PASSING = re.compile(
    r"(^|caused error: )(MISCONF|NOREPLICAS|OOM|READONLY|LOADING|MASTERDOWN|CLUSTERDOWN|TRYAGAIN)\b"
)
PASSING_ERRORS = (
    OutOfMemoryError,
    ReadOnlyError,
    BusyLoadingError,
    MasterDownError,
    ClusterDownError,
    TryAgainError,
)


def is_passing(exc: BaseException) -> bool:
    """Whether a server has refused what it will take later."""
    if isinstance(exc, PASSING_ERRORS):
        return True
    text = str(exc)
    return isinstance(exc, ResponseError) and bool(PASSING.search(text) or FULL in text)


#: What a server over its memory limit says, also of a command in a script, by whichever name.
FULL = "used memory > 'maxmemory'"


#: How a script may begin. Acks and claims free memory, so they must run on a server over its limit
#: ("allow-oom"): Redis knows that line from 7.0 on. On 6.2, which does not, scripts remove before
#: they add, which it allows. The other line is a comment to a server that does not know it;
#: Dragonfly reads there that a script may use a key that it was not told of.
FLAGS_LINE = "#!lua flags={flags}\n"
PLAIN_LINE = "--!df flags=allow-undeclared-keys\n"


@contextmanager
def even_if_full(queue: str, exchange: str) -> Iterator[None]:
    """Go on where a full server does not note that a queue is bound."""
    try:
        yield
    except ResponseError as exc:
        if FULL not in str(exc):
            raise
        logger.warning(
            "The server is full, and did not note that queue %s is bound to exchange %r (%s). "
            "This process goes on without; if the queue is new to that exchange, restart a worker "
            "of it when there is room.",
            queue,
            exchange,
            str(exc).rstrip("."),
        )


def info(client: Redis, section: str = "default") -> dict[str, Any]:
    """What the server says of itself; nothing where that is forbidden."""
    try:
        return dict(client.info(section))
    except ResponseError:
        return {}


def setting(client: Redis, name: str) -> str | None:
    """One setting of the server; None where that is forbidden."""
    try:
        settings: Any = client.config_get(name)
    except ResponseError:
        return None
    return settings.get(name)


def server_version(fields: Mapping[str, Any]) -> tuple[int, int]:
    """Which Redis the server is, or is compatible with; the least supported where it is silent."""
    try:
        major, minor = str(fields["redis_version"]).split(".")[:2]
        return int(major), int(minor)
    except (KeyError, ValueError):
        return OLDEST_SERVER


def check_platform() -> None:
    """Refuse Windows (UnsupportedBroker), where ``os.kill(pid, 0)`` ends a process; warn of a
    redis-py that may stop it."""
    if sys.platform == "win32":
        raise UnsupportedBroker(
            "celery_superfetch cannot consume on Windows: its liveness check would end the "
            "processes it looks at. Run the worker on Linux or macOS; producers may stay."
        )
    if MAY_DEADLOCK:
        warn_once(f"{DEADLOCK}. Other workers then recover its jobs. To mend it, {DEADLOCK_FIX}.")


def check_cluster(fields: Mapping[str, Any], prefix: str) -> None:
    """Refuse a cluster (UnsupportedBroker) that would spread the keys of one app over its nodes."""
    if str(fields.get("cluster_enabled", "0")) == "1" and not TAGGED.match(prefix):
        raise UnsupportedBroker(NO_TAG)


def check_server(client: Redis, prefix: str = "") -> None:
    """Refuse what cannot carry the guarantee (UnsupportedBroker); warn of what may break it."""
    fields = info(client)
    check_cluster(fields, prefix)
    if "sentinel" in (fields.get("redis_mode"), fields.get("server_mode")):  # Redis, Valkey
        raise UnsupportedBroker(
            "the broker is a Sentinel: it keeps no jobs, it knows who does. Name it in broker_url "
            "as sentinel://..., and the primary in broker_transport_options as 'master_name'"
        )
    if server_version(fields) < OLDEST_SERVER:
        raise UnsupportedBroker(
            f"the broker is Redis {fields['redis_version']}; celery_superfetch needs Redis 6.2 or "
            "later, or Valkey. Nothing was claimed; upgrade the server (from Azure Cache for Redis "
            "move to Azure Managed Redis), or remove celery_superfetch.install() from the app to "
            "go on with stock kombu."
        )
    policy = str(fields.get("maxmemory_policy", "noeviction"))
    if policy != "noeviction":
        lost = "private lists, the dead set and kombu's own queues can then vanish, jobs and all"
        if policy.startswith("volatile-"):
            lost = "strikes, by which killers are found, and queues with x-expires can vanish"
        warn_once(
            f"The broker may evict keys (maxmemory-policy is {policy}): {lost}. Set "
            "`maxmemory-policy noeviction` on the server; celery_superfetch goes on working at its "
            "limit."
        )
    _check_scripts(client, prefix)


def first_line(client: Redis) -> str:
    """Find out with which first line this server takes our scripts; ``{flags}`` stands in it.

    The version does not tell: servers that are no Redis name one of 7 and know no such line.

    Raises:
        ResponseError: the server runs no scripts for this user, or takes none at the moment.
    """
    try:
        client.eval(FLAGS_LINE.format(flags="no-writes") + "return 1", 0)
    except NoPermissionError:
        raise
    except ResponseError as exc:
        if is_passing(exc):
            raise
        client.eval(PLAIN_LINE + "return 1", 0)
        return PLAIN_LINE
    return FLAGS_LINE


def _check_scripts(client: Redis, prefix: str) -> None:
    """Refuse a server (UnsupportedBroker) that cannot run scripts on all keys of an app."""
    # So many that they cannot all lie in one slot of a cluster by chance.
    keys = [f"{prefix}superfetch:{n}" for n in range(4)]
    try:
        client.eval(first_line(client).format(flags="no-writes") + "return 1", len(keys), *keys)
    except NoPermissionError as exc:
        raise UnsupportedBroker(
            f"the broker's ACL forbids this user to run scripts ({exc}). Nothing was claimed; "
            "grant +@scripting (docs/reference/options lists every command that is needed)."
        ) from exc
    except ResponseError as exc:
        if is_passing(exc):
            raise
        if isinstance(exc, ClusterCrossSlotError):
            raise UnsupportedBroker(NO_TAG) from exc
        raise UnsupportedBroker(
            f"the broker does not run Lua scripts ({str(exc).rstrip('.')}), and celery_superfetch "
            "moves each job by one. Nothing was claimed; choose a service or a plan that allows "
            "EVAL and EVALSHA, or remove celery_superfetch.install() from the app to go on with "
            "stock kombu."
        ) from exc
