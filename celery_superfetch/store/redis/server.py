"""The server and its abilities: checks before the first claim, and kinds of its errors.

A worker calls ``check_platform`` and ``check_server`` when it starts, in its main process. A
consumer without a worker is checked when its owner registers, before its first claim. Commands call
``check_cluster``. ``Scripts`` asks for ``first_line`` before its first script, in any process. The
channel wraps the declaration of bindings in ``even_if_full`` and ``tried_again``; a worker's
connect is in ``tried_again``, too.

The checks only read, and run the script ``return 1``: a death of the process leaves nothing.
"""

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

#: Before redis-py 6.1 the lock of a connection pool is not reentrant (see ``DEADLOCK``).
MAY_DEADLOCK = VERSION < (6, 1)
DEADLOCK = (
    f"redis-py {'.'.join(map(str, VERSION))} may stop this process for ever: a garbage collection "
    "that comes while the lock of its connection pool is held waits for that lock"
)
DEADLOCK_FIX = "upgrade to redis-py 6.1 or later, which kombu allows since 5.6: upgrade both"

#: Errors of a server that refuses all writes for a while: it has too few replicas, mostly after a
#: failover, or it cannot save, mostly since its disk is full.
REFUSES_ALL = "NOREPLICAS", "MISCONF"

#: The error of a server over its memory limit contains this, also if a script got it, and whatever
#: the code before it.
FULL = "used memory > 'maxmemory'"


@contextmanager
def tried_again() -> Iterator[None]:
    """Raise ConnectionError instead of an error that says that the server refuses all writes. For
    that Celery connects again after a pause; the original error it would take as fatal: the worker
    would end, and its running jobs with it. Nothing is tried again in here."""
    try:
        yield
    except ResponseError as exc:
        if not any(reason in str(exc) for reason in REFUSES_ALL):
            raise
        text = f"the server refuses all writes at the moment ({str(exc).rstrip('.')})"
        logger.warning("We connect again: %s.", text)
        raise ConnectionError(text) from exc


#: Errors that pass by themselves: the server has too few replicas, a full disk or no memory left,
#: it loads its data, or another one is the primary now. This finds them by their code. In a
#: transaction redis-py puts the command and "caused error: " before the code.
PASSING = re.compile(
    r"(^|caused error: )(MISCONF|NOREPLICAS|OOM|READONLY|LOADING|MASTERDOWN|CLUSTERDOWN|TRYAGAIN)\b"
)
#: Classes of such errors. redis-py removes the code from their text.
PASSING_ERRORS = (
    OutOfMemoryError,
    ReadOnlyError,
    BusyLoadingError,
    MasterDownError,
    ClusterDownError,
    TryAgainError,
)


def is_passing(exc: BaseException) -> bool:
    """Return whether an error passes by itself: the server will execute the command later."""
    if isinstance(exc, PASSING_ERRORS):
        return True
    text = str(exc)
    return isinstance(exc, ResponseError) and bool(PASSING.search(text) or FULL in text)


#: First line of a script for servers that know it: Redis from 7.0 on. Acks and claims free memory:
#: with the flag "allow-oom" they run on a server over its memory limit, too. Redis 6.2 knows no
#: flags: there a script may write over the limit if its first write is a removal.
FLAGS_LINE = "#!lua flags={flags}\n"
#: First line for the others, to which it is a comment. Dragonfly reads in it that the script may
#: use keys that are not among its KEYS.
PLAIN_LINE = "--!df flags=allow-undeclared-keys\n"


@contextmanager
def even_if_full(queue: str, exchange: str) -> Iterator[None]:
    """Log a warning, instead of raising, if the server is full and refuses to store the binding of
    a queue."""
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
    """Return a section of INFO; an empty dict if the ACL forbids it."""
    try:
        return dict(client.info(section))
    except ResponseError:
        return {}


def setting(client: Redis, name: str) -> str | None:
    """Return one setting of the server; None if the ACL forbids CONFIG GET."""
    try:
        settings: Any = client.config_get(name)
    except ResponseError:
        return None
    return settings.get(name)


def server_version(fields: Mapping[str, Any]) -> tuple[int, int]:
    """Return the version of Redis that the server is, or says it is compatible with; the oldest
    supported one if it says none."""
    try:
        major, minor = str(fields["redis_version"]).split(".")[:2]
        return int(major), int(minor)
    except (KeyError, ValueError):
        return OLDEST_SERVER


def check_platform() -> None:
    """Raise UnsupportedBroker on Windows, where ``os.kill(pid, 0)`` ends the process; log a warning
    if the installed redis-py may make this process hang."""
    if sys.platform == "win32":
        raise UnsupportedBroker(
            "celery_superfetch cannot consume on Windows: its liveness check would end the "
            "processes it looks at. Run the worker on Linux or macOS; producers may stay."
        )
    if MAY_DEADLOCK:
        warn_once(f"{DEADLOCK}. Other workers then recover its jobs. To mend it, {DEADLOCK_FIX}.")


def check_cluster(fields: Mapping[str, Any], prefix: str) -> None:
    """Raise UnsupportedBroker for a cluster if the prefix has no hash tag: the keys of one app
    would be on several nodes, and no script could use them."""
    if str(fields.get("cluster_enabled", "0")) == "1" and not TAGGED.match(prefix):
        raise UnsupportedBroker(NO_TAG)


def check_server(client: Redis, prefix: str = "") -> None:
    """Raise UnsupportedBroker for a server on which jobs could be lost: a Sentinel, Redis before
    6.2, a cluster without a hash tag, a server that runs no scripts. Log a warning if it may evict
    keys."""
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
    """Return the first line with which this server accepts the package's scripts: ``FLAGS_LINE``,
    in which the caller replaces ``{flags}``, or ``PLAIN_LINE``.

    The server's version does not say it: some servers that are compatible with Redis name a version
    of 7.x and do not know ``FLAGS_LINE``.

    Raises:
        ResponseError: the server runs no scripts for this user, or none at the moment.
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
    """Raise UnsupportedBroker if the server cannot run scripts on all keys of an app."""
    # Four keys: it is unlikely that all are in one slot of a cluster by chance.
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
