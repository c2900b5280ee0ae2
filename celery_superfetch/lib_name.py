"""The name under which our connections stand in CLIENT LIST, to be told from stock kombu's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: As redis-py wants an upstream driver to be called.
NAME = "celery-superfetch"


def named(params: Mapping[str, Any], version: str) -> dict[str, Any]:
    """Connection parameters under which redis-py says who we are.

    It says so as it connects, together with its own version, and carries on where the server
    does not know the command (before Redis 7.2) or the user may not give it.
    """
    try:
        from redis import DriverInfo
    except ImportError:  # redis-py before 7.1
        return {**params, "lib_name": f"redis-py({NAME}_v{version})"}
    return {**params, "driver_info": DriverInfo().add_upstream_driver(NAME, version)}


def is_ours(client: Mapping[str, Any]) -> bool:
    """Whether a row of CLIENT LIST is a connection of this package's."""
    return f"({NAME}_v" in str(client.get("lib-name", ""))
