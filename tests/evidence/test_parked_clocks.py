"""A clock is set forward or back, or its time zone changes its time, while jobs are parked: none
is lost, none starts before its time, and whatever is due starts once the clocks are right."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from itertools import chain
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import redis

from support.servers.clock import Clock
from support.servers.database import Database
from support.servers.ledger import Ledger
from support.servers.server import Server
from support.waiting import always, eventually

HOUR = 3600.0
AHEAD = 12.0  # s: more than what makes a job worth parking, and than a worker needs to claim it
HOST = {"reap_interval": 1, "heartbeat_interval": 1}
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture
def clock(tmp_path) -> Clock:
    return Clock(tmp_path)


@pytest.fixture
def own(clock, fresh_server) -> Server:
    """A server that goes by that clock."""
    return fresh_server(env=clock.env)


@pytest.fixture
def db(own) -> Iterator[Database]:
    with redis.Redis.from_url(own.url()) as client:
        yield Database(client)


@pytest.fixture
def set_to(clock, db) -> Callable[[float], None]:
    """`set_to(3600)`: the server is so many seconds ahead of this machine, and shows it."""

    def step(ahead: float) -> None:
        clock.step(ahead)
        eventually(lambda: abs(server_time(db) - clock.now) < 5, message="the server's clock")

    return step


def server_time(db: Database) -> float:
    seconds, micros = db.client.time()
    return float(seconds + micros / 1e6)


class Jobs:
    """Jobs of one sender, and when they are due by this machine's clock."""

    def __init__(self, app: Any) -> None:
        self.note, self.due = app.tasks["shop.note"], dict[str, float]()

    def send(self, **ahead: float) -> None:
        for name, seconds in ahead.items():
            self.due[name] = time.time() + seconds
            eta = datetime.fromtimestamp(self.due[name], timezone.utc)
            self.note.apply_async((name,), eta=eta)

    def ran(self, ledger: Ledger, *names: str) -> None:
        """These have run, each once and not before its time; no other has."""
        eventually(lambda: {*names} <= ledger.finishes().keys(), AHEAD + 30)
        starts = ledger.starts()
        assert {name: len(times) for name, times in starts.items()} == dict.fromkeys(names, 1)
        assert all(starts[name][0] >= self.due[name] for name in names), (starts, self.due)


@pytest.fixture
def jobs(own, make_app) -> Jobs:
    return Jobs(make_app(superfetch=False, url=own.url()))


def test_a_server_that_is_set_forward_makes_no_job_early(own, set_to, worker, jobs, ledger, db):
    """It gives away what is due by its own clock, and a worker waits for what is left. Nobody takes
    another for dead, and once the clock is right, all is as it was."""
    pair = [worker(url=own.url(), options=HOST) for _ in range(2)]
    jobs.send(near=AHEAD, far=HOUR / 2, beyond=2 * HOUR)
    eventually(lambda: db.parked() == ["near", "far", "beyond"])
    owners = {*db.owners()}
    set_to(HOUR)
    eventually(lambda: db.parked() == ["beyond"], message="two are due by its clock")
    eventually(lambda: {*chain(*db.held().values())} == {"far", "near"}, message="in memory")
    jobs.ran(ledger, "near")
    set_to(0)
    eventually(lambda: all(db.heard(owner) / 1000 < time.time() + 60 for owner in owners))
    assert ({*db.owners()}, db.counters()) == (owners, [])
    [holder] = [owner for owner, names in db.held().items() if "far" in names]
    # Last: the other would claim it, and park it again.
    for one in sorted(pair, key=lambda one: f"|{one.pid}|" in holder):
        one.stop()
    assert (db.waiting(), db.parked()) == (["far"], ["beyond"])
    worker(url=own.url())
    eventually(lambda: db.parked() == ["far", "beyond"])
    jobs.ran(ledger, "near")


def test_while_a_server_is_set_back_what_it_holds_waits(own, set_to, worker, jobs, ledger, db):
    """By as much; and it starts once the clock is right, though heartbeats go back as well."""
    pair = [worker(url=own.url(), options=HOST) for _ in range(2)]
    jobs.send(near=AHEAD, far=HOUR / 2)
    eventually(lambda: db.parked() == ["near", "far"])
    owners = {*db.owners()}
    set_to(-HOUR)
    jobs.note.delay("ordinary")
    jobs.due["ordinary"] = 0.0
    jobs.ran(ledger, "ordinary")
    eventually(lambda: time.time() > jobs.due["near"])
    always(lambda: db.parked() == ["near", "far"], during=2.0)
    jobs.ran(ledger, "ordinary")
    set_to(0)
    jobs.ran(ledger, "ordinary", "near")
    assert db.parked() == ["far"]
    assert ({*db.owners()}, db.counters()) == (owners, [])
    assert all(one.alive() for one in pair)


def test_one_that_was_wrong_and_is_set_right_starts_what_is_due(
    own, set_to, worker, jobs, ledger, db
):
    """It was an hour behind when they were parked."""
    set_to(-HOUR)
    worker(url=own.url(), options=HOST)
    jobs.send(near=AHEAD, far=HOUR / 2)
    eventually(lambda: db.parked() == ["near", "far"])
    set_to(0)
    jobs.ran(ledger, "near")
    assert db.parked() == ["far"]


@pytest.mark.parametrize(
    "change",
    [datetime(2026, 10, 25, 1, tzinfo=timezone.utc), datetime(2026, 3, 29, 1, tzinfo=timezone.utc)],
    ids=["an hour comes twice", "an hour is left out"],
)
def test_a_change_to_or_from_summer_time_moves_nothing(
    change, own, clock, worker, make_app, ledger, db
):
    """All go by one clock, ten seconds before it. A worker whose app counts in UTC and one that
    does not each run a job with a local time, and put one off from before the change until after
    it."""
    before, due = change.timestamp() - 10, change.timestamp() + 2
    clock.set(before - HOUR)
    queues, sent = {"utc": True, "local": False}, []
    for queue, utc in queues.items():
        conf = {"timezone": "Europe/Berlin", "enable_utc": utc}
        env = {**clock.env, "TZ": "Europe/Berlin"}
        worker(url=own.url(), conf=conf, queues=[queue], env=env)
        sent.append(make_app(superfetch=False, url=own.url(), conf=conf).tasks)
    clock.set(before)
    for queue, tasks in zip(queues, sent, strict=True):
        eta = datetime.fromtimestamp(due, BERLIN)
        tasks["shop.note"].apply_async((f"{queue}: eta",), eta=eta, queue=queue)
        put_off = (f"{queue}: put off", AHEAD)
        tasks["shop.put_off"].apply_async(put_off, queue=queue)
    for queue in queues:
        parked = {f"{queue}: eta", f"{queue}: put off"}
        eventually(lambda q=queue, names=parked: {*db.parked(q)} == names)
    eventually(lambda: len(ledger.lines("started")) == 6, AHEAD + 30)
    starts = ledger.starts()
    for queue in queues:
        [at] = starts[f"{queue}: eta"]
        first, second = starts[f"{queue}: put off"]
        assert before <= first < change.timestamp() < due <= at
        assert second >= first + AHEAD
    assert not db.keys("superfetch:parked*")
