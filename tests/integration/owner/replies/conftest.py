"""A server of its own, and a process that does not wait long for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from celery_superfetch.model.owner_record import OwnerRecord
from support.servers.server import Server
from support.workers.bench import Bench


@pytest.fixture
def server(fresh_server: Callable[..., Server]) -> Server:
    return fresh_server(appendonly=True, appendfsync="always")


@pytest.fixture
def patience() -> float:
    """Seconds; a test that wants its answers may say more."""
    return 0.3


@pytest.fixture
def hasty(server: Server, patience: float) -> Bench:
    """A process that gives up on a reply after its ``patience``."""
    own = redis.ConnectionPool(host="127.0.0.1", port=server.port, socket_timeout=patience)
    return Bench(redis.Redis(connection_pool=own))


@pytest.fixture
def owner(hasty: Bench) -> OwnerRecord:
    record = hasty.owner()
    # From here on the server knows the scripts, and we its version.
    hasty.driver.claim(record.owner, ["mail"], 1, 1, [])
    hasty.scripts.run_all([hasty.lists.settle_counted(record.owner, [])])
    hasty.driver.claim_suspect(record.owner, "mail")
    return record
