"""Checks of the server before the first claim: what cannot work is refused by name."""

from __future__ import annotations

import logging
import sys
from typing import Any

from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError, ResponseError

from .errors import UnsupportedBroker

logger = logging.getLogger(__name__)

#: LMOVE, BLMOVE and LPOS with what we need of them came with Redis 6.2.
OLDEST_SERVER = (6, 2)


class ReadOnlyServer(RedisConnectionError):
    """The server is a read-only replica; a connection error, since a failover mends it."""


def check_platform() -> None:
    """Refuse Windows, where asking for a process by ``os.kill(pid, 0)`` ends it.

    Raises:
        UnsupportedBroker: this is Windows.
    """
    if sys.platform == "win32":
        raise UnsupportedBroker(
            "celery_superfetch cannot consume on Windows: its liveness check would end the "
            "processes it looks at. Run the worker on Linux or macOS; producers may stay."
        )


def check_server(client: Redis) -> None:
    """Refuse a server that cannot carry the guarantee; warn of one that may break it.

    Raises:
        UnsupportedBroker: the server is too old, or its ACL forbids scripts, or it is a
            Sentinel whose URL does not say so.
    """
    check_platform()
    info = _info(client)
    _check_version(info)
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if policy != "noeviction":
        logger.warning(
            "The broker may evict keys (maxmemory-policy is %s): private lists, the dead set "
            "and kombu's own queues can then vanish, jobs and all. Set `maxmemory-policy "
            "noeviction` on the server; celery_superfetch goes on working at its limit.",
            policy,
        )
    _check_scripts(client)


def check_writable(client: Redis) -> None:
    """Refuse a read-only replica.

    Raises:
        ReadOnlyServer: it is one; a consumer connects again until a failover has mended it.
    """
    info = _info(client, "replication")
    if info.get("role") == "slave" and str(info.get("slave_read_only", "1")) == "1":
        raise ReadOnlyServer(
            "the broker is a read-only replica of "
            f"{info.get('master_host')}:{info.get('master_port')}: no job can be claimed from "
            "it or sent to it. Nothing was lost; it is asked again until a failover is over. If "
            "there is none, point broker_url at the primary"
        )


def _info(client: Redis, section: str = "default") -> dict[str, Any]:
    try:
        info: Any = client.info(section)
    except (NoPermissionError, ResponseError):
        logger.debug("INFO is forbidden to this user; the server was not checked")
        return {}
    return dict(info)


def _check_version(info: dict[str, Any]) -> None:
    if "sentinel" in (info.get("redis_mode"), info.get("server_mode")):  # Redis, Valkey
        raise UnsupportedBroker(
            "the broker is a Sentinel: it keeps no jobs, it knows who does. Name it in "
            "broker_url as sentinel://..., and the primary in broker_transport_options as "
            "'master_name'"
        )
    version = str(info.get("redis_version", ""))
    try:
        major, minor = (int(part) for part in version.split(".")[:2])
    except ValueError:
        return
    if (major, minor) < OLDEST_SERVER:
        raise UnsupportedBroker(
            f"the broker is Redis {version}; celery_superfetch needs Redis 6.2 or later, or "
            "Valkey. Nothing was claimed; upgrade the server, or remove "
            "celery_superfetch.install() from the app to go on with stock kombu."
        )


def _check_scripts(client: Redis) -> None:
    try:
        client.evalsha(client.script_load("return 1"), 0)
    except NoPermissionError as exc:
        raise UnsupportedBroker(
            f"the broker's ACL forbids this user to run scripts ({exc}). Nothing was claimed; "
            "grant +@scripting (docs/configuration lists every command that is needed)."
        ) from exc
