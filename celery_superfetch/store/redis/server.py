"""The server and its abilities: checks before the first claim, and the classes of its errors.

A worker calls ``check_platform`` and ``check_server`` when it starts, in its main process. A
consumer without a worker is checked when its owner registers, before its first claim. Commands call
``check_cluster``. ``Scripts`` asks for ``first_line`` before its first script, in any process.
kombu's channel of this package declares bindings within ``even_if_full`` and
``as_connection_error``; a worker connects within ``as_connection_error``, too. Code that settles a
job after an error (worker, owner, reaper) calls ``is_server_or_memory_error`` or
``is_lost_connection``. The inspector calls ``info`` and ``setting``. Code that treats a refusal as
an answer ("the ACL forbids it") asks ``is_temporary`` first, in any process.

The checks only read, and run the script ``return 1``: if the process dies, nothing has to be
repaired.
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
    DataError,
    MasterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from ...errors import UnsupportedBroker
from ...model.log_text import one_line_each
from .slots import HASH_TAGGED, NO_TAG

logger = one_line_each(logging.getLogger(__name__))
#: Logs a warning once. It remembers the last 1,000 texts, about 300 kB: a text may name an owner,
#: and during the life of a process there may be any number of owners.
warn_once = lru_cache(maxsize=1000)(logger.warning)

OLDEST_SERVER = (6, 2)  # BLMOVE, RPOP of several and ZADD with LT came with Redis 6.2

#: Before redis-py 6.1 the lock of a connection pool is not reentrant (see ``DEADLOCK``).
MAY_DEADLOCK = VERSION < (6, 1)
DEADLOCK = (
    f"redis-py {'.'.join(map(str, VERSION))} can deadlock this process: a garbage collection "
    "while the lock of a connection pool is held waits for that lock"
)
DEADLOCK_FIX = "upgrade to redis-py 6.1 or later, and kombu to 5.6 or later, which allows it"

#: Finds the errors of a server that refuses all writes for a while: it has too few replicas, mostly
#: after a failover, or it cannot save, mostly since its disk is full. With BUSY it refuses reads,
#: too, since a script runs for longer than ``busy-reply-threshold``.
REFUSES_ALL = re.compile(r"\b(NOREPLICAS|MISCONF|BUSY)\b")

#: Each error of a server over its memory limit contains this, also if a command within a script got
#: the error, and even if it begins with another code than OOM.
FULL_TEXT = "used memory > 'maxmemory'"


@contextmanager
def as_connection_error() -> Iterator[None]:
    """Raise ConnectionError instead of an error which says that the server refuses all writes.
    After a ConnectionError Celery connects again, with a pause. After the original error it would
    end the worker, and its running jobs with it. This function itself repeats nothing."""
    try:
        yield
    except ResponseError as exc:
        if not REFUSES_ALL.search(str(exc)):
            raise
        text = f"the server refuses all writes at the moment ({str(exc).rstrip('.')})"
        logger.warning(
            "Connecting to Redis again after a pause: %s. Check its disk, replicas and long "
            "scripts.",
            text,
        )
        raise ConnectionError(text) from exc


#: Finds temporary errors by their codes: the server has too few replicas, a full disk or no memory
#: left, it loads its data, a script runs for too long (BUSY), or another server is the primary now.
#: In a transaction redis-py puts the command and "caused error: " before the code, and the server
#: puts "because of: " before it if the error came with EXEC. Redis before 7 puts the place in the
#: script before it if a command within a script got the error: "@user_script: 7: -".
TEMPORARY_CODES = re.compile(
    r"(^|caused error: |because of: |@user_script: \d+: -)"
    r"(MISCONF|NOREPLICAS|OOM|READONLY|LOADING|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|BUSY)\b"
)
#: Classes of temporary errors. redis-py removes the code from their text.
TEMPORARY_ERRORS = (
    OutOfMemoryError,
    ReadOnlyError,
    BusyLoadingError,
    MasterDownError,
    ClusterDownError,
    TryAgainError,
)
READ_ONLY_IN_SCRIPT = re.compile(r"@user_script: \d+: -READONLY\b")


def is_temporary(exc: BaseException) -> bool:
    """Return whether an error is temporary: the server will execute the command later."""
    if isinstance(exc, TEMPORARY_ERRORS):
        return True
    text = str(exc)
    return isinstance(exc, ResponseError) and bool(
        TEMPORARY_CODES.search(text) or FULL_TEXT in text
    )


def is_read_only(exc: BaseException) -> bool:
    """Return whether an error says that the server is a read-only replica. It is no
    ``ReadOnlyError`` if Redis before 7 answers it to a command within a script."""
    if isinstance(exc, ReadOnlyError):
        return True
    return isinstance(exc, ResponseError) and bool(READ_ONLY_IN_SCRIPT.search(str(exc)))


#: First line of a script for servers that know it: Redis from 7.0 on. Acks and claims free memory:
#: with the flag "allow-oom" they run on a server over its memory limit, too. Redis 6.2 knows no
#: flags. There the limit is checked only at a script's first write, and a removal passes: so the
#: first write of each script that must run is a removal.
FLAGS_LINE = "#!lua flags={flags}\n"
#: First line for other servers, to which it is a comment. Only Dragonfly reads it: with this flag
#: a script may use keys that are not among its KEYS.
PLAIN_LINE = "--!df flags=allow-undeclared-keys\n"


def is_server_error(exc: BaseException) -> bool:
    """Return whether an error comes from a server that cannot be reached, or that refuses a
    command: the job is not to blame. But a ``DataError`` is the job's fault: redis-py refuses a
    value that the job has passed."""
    return isinstance(exc, (OSError, RedisError)) and not isinstance(exc, DataError)


def is_lost_connection(exc: BaseException) -> bool:
    """Return whether an error comes from a server that cannot be reached. Celery's worker
    reconnects at such an error. At a refusal (``ResponseError``) it does not: it would end."""
    return is_server_error(exc) and not isinstance(exc, ResponseError)


def is_server_or_memory_error(exc: BaseException) -> bool:
    """Return whether the server or a lack of memory is the cause of an error: neither the job nor
    code of the user is to blame."""
    return is_server_error(exc) or isinstance(exc, MemoryError)


@contextmanager
def even_if_full(queue: str, exchange: str) -> Iterator[None]:
    """Log a warning, instead of raising, if the server is full and refuses to store the binding of
    a queue."""
    try:
        yield
    except ResponseError as exc:
        if FULL_TEXT not in str(exc):
            raise
        logger.warning(
            "Redis is full: the binding of a queue was not stored (queue=%s, exchange=%r): %s. The "
            "process continues. Free memory. If the queue is new to that exchange, messages may "
            "not reach it: then restart one of its workers.",
            queue,
            exchange,
            str(exc).rstrip("."),
        )


def info(client: Redis, section: str = "default") -> dict[str, Any]:
    """Return a section of INFO; an empty dict if the ACL forbids it. Raises ResponseError if the
    server refuses it only now (BUSY): its version, its mode and its run must not count as unknown
    for that."""
    try:
        return dict(client.info(section))
    except ResponseError as exc:
        if is_temporary(exc):
            raise
        return {}


def setting(client: Redis, name: str) -> str | None:
    """Return one setting of the server; None if the ACL forbids CONFIG GET. Raises ResponseError if
    the server refuses it only now (BUSY)."""
    try:
        settings: Any = client.config_get(name)
    except ResponseError as exc:
        if is_temporary(exc):
            raise
        return None
    return settings.get(name)


def server_version(fields: Mapping[str, Any]) -> tuple[int, int]:
    """Return the version of Redis that the server has, or claims to be compatible with; the oldest
    supported version if it names none."""
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
            "celery_superfetch cannot run workers on Windows: its check whether a process is "
            "alive would end that process. Run workers on Linux or macOS; producers may run on "
            "Windows."
        )
    if MAY_DEADLOCK:
        warn_once(f"{DEADLOCK}. Other workers would recover its jobs. To fix it, {DEADLOCK_FIX}.")


def check_cluster(fields: Mapping[str, Any], prefix: str) -> None:
    """Raise UnsupportedBroker for a cluster if the prefix has no hash tag: the keys of one app
    would be on several nodes, and no script could use them."""
    if str(fields.get("cluster_enabled", "0")) == "1" and not HASH_TAGGED.match(prefix):
        raise UnsupportedBroker(NO_TAG)


def check_server(client: Redis, prefix: str = "") -> None:
    """Raise UnsupportedBroker for a server on which jobs could be lost: a Sentinel, Redis before
    6.2, a cluster without a hash tag, a server that runs no scripts. Log a warning if it may evict
    keys."""
    fields = info(client)
    check_cluster(fields, prefix)
    if "sentinel" in (fields.get("redis_mode"), fields.get("server_mode")):  # Redis, Valkey
        raise UnsupportedBroker(
            "broker_url names a Sentinel as if it were a Redis server, and it stores no jobs. "
            "Write sentinel://..., and the name of the primary as 'master_name' in "
            "broker_transport_options"
        )
    if server_version(fields) < OLDEST_SERVER:
        raise UnsupportedBroker(
            f"the broker is Redis {fields['redis_version']}; celery_superfetch needs Redis 6.2 "
            "or later, or Valkey. No job was claimed. Upgrade the server (Azure Cache for Redis: "
            "move to Azure Managed Redis), or remove celery_superfetch.install() from the app to "
            "continue with stock kombu."
        )
    policy = str(fields.get("maxmemory_policy", "noeviction"))
    if policy != "noeviction":
        lost = "private lists, the dead set and queues may be evicted with their jobs"
        if policy.startswith("volatile-"):
            lost = "strikes and queues with x-expires may be evicted"
        warn_once(
            f"Redis may evict keys (maxmemory-policy={policy}): {lost}. Set maxmemory-policy to "
            "noeviction; celery_superfetch also works when memory is full."
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
        if is_temporary(exc):
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
            f"the server's ACL forbids this user to run scripts ({exc}). No job was claimed. "
            "Grant +@scripting (docs/reference/options lists all permissions)."
        ) from exc
    except ResponseError as exc:
        if is_temporary(exc):
            raise
        if isinstance(exc, ClusterCrossSlotError):
            raise UnsupportedBroker(NO_TAG) from exc
        raise UnsupportedBroker(
            f"the server does not run Lua scripts ({str(exc).rstrip('.')}), which "
            "celery_superfetch needs to move jobs. No job was claimed. Choose a service or a "
            "plan that allows EVAL and EVALSHA, or remove celery_superfetch.install() from the "
            "app to continue with stock kombu."
        ) from exc
