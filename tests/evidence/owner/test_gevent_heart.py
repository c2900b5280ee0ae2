"""The pulse of an owner under gevent, over every kind of connection, and when that breaks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from support.process import Process
from support.waiting import eventually
from support.workers.worker import TESTS, process_env


@pytest.fixture
def hub(keep: Callable[[Any], Any], tmp_path: Path) -> Callable[[str], Process]:
    """`hub(url)`: an owner, until `tmp_path / "end"` is there; `block` blocks its hub."""

    def start(url: str) -> Process:
        argv = [sys.executable, str(TESTS / "support" / "apps" / "hub.py"), url, str(tmp_path)]
        log = tmp_path / "hub.log"
        process: Process = keep(Process(argv, log=log, env=process_env({}), title="hub"))
        eventually(lambda: (tmp_path / "joined").exists() or not process.alive())
        assert process.alive(), process.tail()
        return process

    return start


def heard(client: redis.Redis) -> float:
    """The only owner's last heartbeat."""
    rows: Any = client.zrange("superfetch:owners", 0, -1, withscores=True)
    assert len(rows) == 1
    return float(rows[0][1])


def is_heard(client: redis.Redis, times: int = 5) -> None:
    for _ in range(times):
        before = heard(client)
        eventually(lambda before=before: heard(client) > before, 5, message="heard again")


def blocked(process: Process, client: redis.Redis, directory: Path) -> None:
    """It is heard while its hub is blocked, and leaves nothing behind."""
    (directory / "block").touch()
    is_heard(client)
    (directory / "end").touch()
    assert process.wait_exit() == 0, process.tail()
    assert client.keys("superfetch:*") in ([], [b"superfetch:served"])


@pytest.mark.parametrize("way", ["tcp", "unix", "tls"])
def test_it_is_heard_over(way, request, hub, fresh_server, tmp_path):
    if way == "tls":
        own, port = request.getfixturevalue("tls_port")
        url = f"rediss://127.0.0.1:{port}/0?ssl_cert_reqs=none"
    else:
        own = fresh_server(unixsocket=True, requirepass="s3cret")
        url = own.url() if way == "tcp" else f"unix://:s3cret@{own.options['unixsocket']}?db=0"
    blocked(hub(url), own.client(), tmp_path)


def test_it_mends_when_its_connection_was_lost(hub, fresh_server, tmp_path):
    own = fresh_server(appendonly=True, appendfsync="always")
    process, client = hub(own.url()), own.client()
    for _ in range(3):
        client.client_kill_filter(_type="normal", skipme=True)
        is_heard(client)
    own.kill()
    own.restart()
    client = own.client()
    eventually(lambda: heard(client))
    is_heard(client, times=15)
    connections = len(client.client_list())
    blocked(process, client, tmp_path)
    assert connections <= 5, "none is left behind by a loss"
