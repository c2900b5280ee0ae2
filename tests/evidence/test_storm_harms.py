"""The harms of the storm that programs here imitate: partial failures of a network, little CPU."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from evidence.storm.network import Network
from evidence.storm.quota import PERIOD_US, QUOTA_US, Quota
from support.servers.server import Server
from support.waiting import eventually

#: Seconds for which a client waits for a reply.
PATIENCE_S = 0.5
LATE = (redis.ConnectionError, redis.TimeoutError)


def impatient(network: Network) -> redis.Redis:
    once = Retry(NoBackoff(), 0)
    client: redis.Redis = redis.Redis.from_url(network.url(), socket_timeout=PATIENCE_S, retry=once)
    return client


@pytest.fixture
def network(server: Server) -> Iterator[Network]:
    server.client().flushall()
    with Network(server.port) as network:
        yield network


@pytest.fixture
def client(network: Network) -> Iterator[redis.Redis]:
    with impatient(network) as client:
        client.ping()
        yield client


@pytest.mark.parametrize("to_server", [True, False])
def test_a_partition_has_one_direction_and_what_was_sent_into_it_arrives(
    server, network, client, to_server
):
    network.partition(to_server=to_server)
    with pytest.raises(LATE):
        client.incr("n")
    # A command into the partition has not arrived; one out of it was carried out.
    assert server.client().get("n") == (None if to_server else b"1")
    with pytest.raises(LATE), impatient(network) as new:
        new.ping()
    network.restore()
    eventually(lambda: server.client().get("n") == b"1", 10, message="it arrives")
    assert client.incr("n") == 2


def test_a_delay_is_that_of_each_direction(network, client):
    network.delay(0.1)
    began = time.monotonic()
    client.ping()
    assert time.monotonic() - began >= 0.2
    network.restore()
    assert client.ping()


def test_what_is_lost_arrives_later_and_in_order(server, network, client):
    network.lose(0.5)
    patient: redis.Redis = redis.Redis.from_url(network.url(), socket_timeout=60)
    began = time.monotonic()
    for number in range(8):
        patient.rpush("l", number)
    assert time.monotonic() - began > 0.2, "nothing was lost"
    assert server.client().lrange("l", 0, -1) == [b"%d" % number for number in range(8)]


@pytest.mark.parametrize("cgroups", [True, False])
def test_a_quota_holds_for_a_process_and_ends(cgroups, monkeypatch, tmp_path):
    if not cgroups:
        for name in ("UNIFIED", "LEGACY"):
            monkeypatch.setattr(f"evidence.storm.quota.{name}", tmp_path / name)
    busy = subprocess.Popen([sys.executable, "-I", "-S", "-c", "while True: pass"])
    try:
        process = psutil.Process(busy.pid)
        eventually(lambda: process.cpu_times().user > 0.05, 20, message="it is busy")
        quota = Quota([process])
        assert cgroups or quota.means == "SIGSTOP"
        before, began = process.cpu_times().user, time.monotonic()
        time.sleep(2)
        used = process.cpu_times().user - before
        # Signals come late on a busy machine.
        assert used <= (time.monotonic() - began) * QUOTA_US / PERIOD_US * 4
        quota.end()
        goal = process.cpu_times().user + 0.3
        eventually(lambda: process.cpu_times().user > goal, 20, message="it is busy again")
    finally:
        busy.kill()
        busy.wait()
