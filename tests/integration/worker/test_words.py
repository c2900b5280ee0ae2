"""What a worker says at its start, and how often it says the same."""

from __future__ import annotations

from collections.abc import Callable

import redis

from celery_superfetch import __version__
from support.servers.database import Database
from support.servers.faults import kill_connections
from support.waiting import eventually
from support.workers.worker import Worker


def test_one_line_at_the_start_says_what_a_worker_goes_by(
    worker: Callable[..., Worker], client: redis.Redis
) -> None:
    """E7. Once, also when it loses its connection."""
    options = {"owner_ttl": 45, "strike_limit": 5}
    one = worker(options=options, conf={"task_reject_on_worker_lost": False})
    [owner] = Database(client).owners()
    kill_connections(client)
    eventually(lambda: one.log().count("Connected to redis") >= 2)
    lines = [line for line in one.log().splitlines() if f"celery_superfetch {__version__}" in line]
    [line] = lines
    for part in (owner, "45 s", "strike 5", "72 h", "acks_late is on", "worker_lost is off"):
        assert part in line, part
    assert "INFO" in line


def test_another_broker_is_warned_of_once(worker: Callable[..., Worker]) -> None:
    """E7. A worker asks for its transport seventeen times at its start."""
    one = worker(url="memory://", result_url="", pool="solo")
    assert one.log().count("is installed, but the broker is") == 1
