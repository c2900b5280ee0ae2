"""Calls whose reply does not come in time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis.exceptions import TimeoutError as RedisTimeoutError

from support.servers.server import Server


def unheard(server: Server, call: Callable[[], Any]) -> None:
    """Make a call whose reply does not come in time; the server carries it out later."""
    server.pause()
    with pytest.raises(RedisTimeoutError):
        call()
    server.resume()
