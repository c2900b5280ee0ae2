"""Workers that wait on the same twelve queues share them by rank: a job wakes one of them, and the
death of some leaves no queue without a reader."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from support.process import Process
from support.servers.commands import blocked, calls
from support.servers.server import Server
from support.waiting import eventually
from support.workers.bench import Bench
from support.workers.consumers import SEEN
from support.workers.inbox import publish
from support.workers.worker import process_env

OWNERS = 8
QUEUES = [f"fleet-{n:02}" for n in range(12)]
RANKS = "superfetch:ranks"


@pytest.fixture
def server(fresh_server: Any) -> Server:
    """A server whose commands nothing else adds to."""
    return fresh_server()


@pytest.fixture
def client(server: Server) -> redis.Redis:
    return server.client()


@pytest.fixture
def fleet(server: Server, client: redis.Redis, tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Start the consumers, and wait until each knows that all wait."""
    started: list[Process] = []

    def start(without: str = "") -> Process:
        argv = [
            sys.executable,
            "-m",
            "support.workers.consumers",
            server.url(),
            str(OWNERS),
            *QUEUES,
        ]
        env = process_env({"WITHOUT": without})
        one = Process(argv, log=tmp_path / "log", env=env, cwd=tmp_path, title="fleet")
        started.append(one)
        eventually(lambda: client.zcard(RANKS) == 2 * OWNERS, 60, message="all wait")
        # The next heartbeat of each tells it so, and each of its reads begins anew within 20 s.
        expected = OWNERS if without else 0
        eventually(lambda: len(tracked(client)) == expected, 60, message="who is told of changes")
        return one

    yield start
    for one in started:
        one.close()


@pytest.fixture
def simulated(server: Server, tmp_path: Path) -> Iterator[Callable[[int], Process]]:
    """Start so many owners that wait and claim nothing, in a process of their own."""
    started: list[Process] = []

    def start(count: int) -> Process:
        module, interval = "support.workers.simulated", "2"
        argv = [sys.executable, "-m", module, server.url(), str(count), interval, *QUEUES]
        log = tmp_path / f"simulated-{len(started)}"
        one = Process(argv, log=log, env=process_env({}), cwd=tmp_path, title="simulated")
        started.append(one)
        return one

    yield start
    for one in started:
        one.close()


def read_lists(client: redis.Redis) -> int:
    """The number of lists on which at least one consumer blocks (Redis before 7.2 does not say)."""
    return int(client.info("clients").get("total_blocking_keys", len(QUEUES)))


def tracked(client: redis.Redis) -> list[dict[str, Any]]:
    """The connections by which consumers are told of changes."""
    return [row for row in client.client_list() if "t" in row["flags"]]


def looks_for(server: Server, jobs: int) -> tuple[int, float]:
    """Publish jobs to all queues in turn; return how often a consumer looked at lists until all
    were seen, and how long that took (s)."""
    client = server.client()
    client.delete(SEEN)
    before, began = calls(client, "exists"), time.monotonic()
    for number in range(jobs):
        publish(server.url(), QUEUES[number % len(QUEUES)], f"job-{number}")
        eventually(lambda number=number: client.llen(SEEN) == number + 1, 30, 0.005)
    seen = [raw.decode() for raw in client.lrange(SEEN, 0, -1)]
    assert sorted(seen) == sorted(f"job-{number}" for number in range(jobs)), "each once"
    return calls(client, "exists") - before, time.monotonic() - began


def test_a_job_wakes_one_of_the_workers_that_wait(fleet, server):
    fleet()
    looks, took = looks_for(server, jobs := 2 * len(QUEUES))
    once_a_second = OWNERS * (took + 1)
    assert looks - once_a_second <= jobs


def test_the_control_workers_that_do_not_know_each_other_are_woken_together(fleet, server):
    fleet(without="places")
    looks, _ = looks_for(server, jobs := 2 * len(QUEUES))
    assert looks > 3 * jobs


def test_after_the_death_of_half_the_others_serve_all_queues(fleet, server, client):
    """No reaper runs here: the dead keep their ranks, and the lists that these had are looked
    at."""
    fleet()
    rows = [row.decode() for row in client.zrange(RANKS, 0, -1)]
    pids = sorted({int(row.split("|")[1]) for row in rows if ":a:" in row})
    connected = len(client.client_list())
    for pid in pids[::2]:
        os.kill(pid, signal.SIGKILL)
    # Else a job lands at a connection that is gone, and waits there for a reaper.
    eventually(lambda: len(client.client_list()) <= 0.7 * connected, message="the dead have left")
    looks_for(server, len(QUEUES))
    assert len(pids) == OWNERS


def test_after_a_mass_death_the_survivors_read_from_all_queues(fleet, simulated, server, client):
    """Beside 90 others each consumer blocks on one list. As soon as a reaper has found these dead,
    eight of them block on four lists each, and each list has a reader as soon as their old reads
    have ended, which go on for 20 s at most."""
    fleet()
    crowd = [simulated(60), simulated(30)]
    eventually(lambda: client.zcard(RANKS) == 2 * (OWNERS + 90), 30, message="all have a place")
    eventually(lambda: blocked(client) == OWNERS, 40, message="one read each")
    for process in crowd:
        process.signal(signal.SIGKILL)
    looks_for(server, len(QUEUES))
    assert len(Bench(client).reaper().reap().dead) == 90
    assert client.zcard(RANKS) == 2 * OWNERS
    eventually(lambda: blocked(client) == 4 * OWNERS, 20, message="they have new places")
    eventually(lambda: read_lists(client) == len(QUEUES), 30, message="each list has a reader")
    looks_for(server, len(QUEUES))
