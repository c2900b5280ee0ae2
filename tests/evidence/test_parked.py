"""Jobs for later wait on the server: not before their time, within a second after it, whoever
parked them and whatever became of that worker."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

import pytest
from celery.result import AsyncResult

from support.servers.ledger import Ledger
from support.waiting import always, eventually
from support.workers.bench import payload

#: Seconds: more than what makes a job worth parking, with the time that a worker has to claim it.
AHEAD = 8.0
#: Seconds after its time at which a job has begun; one of them is a busy machine's.
LATE = 2.0
DAY = 86_400
HOST = {"reap_interval": 1, "heartbeat_interval": 1}


class Due:
    """Jobs that are due at one time."""

    def __init__(self, ahead: float = AHEAD) -> None:
        self.at = datetime.now(timezone.utc) + timedelta(seconds=ahead)

    def were_punctual(self, ledger: Ledger, *names: str) -> None:
        """Each has run once, in its second."""
        eventually(lambda: {*names} <= {*ledger.finishes()}, AHEAD + 30)
        starts = ledger.starts()
        assert {name: len(starts[name]) for name in names} == dict.fromkeys(names, 1)
        late = [starts[name][0] - self.at.timestamp() for name in names]
        assert min(late) >= 0, "before its time"
        assert max(late) < LATE, late


@pytest.mark.parametrize(
    ("pool", "conf"),
    [
        ("prefork", {}),
        ("prefork", {"worker_disable_prefetch": True}),
        ("threads", {}),
        ("solo", {}),
        ("gevent", {}),
    ],
)
def test_each_pool_starts_them_in_their_second(pool, conf, worker, make_app, shop, ledger, db):
    """Of both protocols and any priority; meanwhile the worker holds nothing."""
    one = worker(pool=pool, conf=conf)
    due = Due()
    first = make_app(superfetch=False, conf={"task_protocol": 1}).tasks["shop.note"]
    shop.note.apply_async(("plain",), eta=due.at)
    shop.note.apply_async(("urgent",), eta=due.at, priority=3)
    first.apply_async(("protocol 1",), eta=due.at)
    eventually(lambda: db.client.zcard("superfetch:parked:celery") == 2)
    eventually(lambda: db.parked("celery\x06\x163") == ["urgent"])
    assert not db.held()
    shop.ran("ordinary")
    due.were_punctual(ledger, "plain", "urgent", "protocol 1")
    assert not db.keys("superfetch:parked*")
    assert one.alive()


@pytest.mark.parametrize("without", ["", "punctuality"])
def test_a_greenlet_that_keeps_the_loop_lets_none_start_early(worker, shop, ledger, without):
    """gevent's timers count from when its loop looked at the clock last. The control: it does."""
    worker(pool="gevent", env={"HAPPENS": "slow_receivers", "WITHOUT": without})
    due = Due(ahead=2)
    shop.note.apply_async(("job",), eta=due.at)
    eventually(lambda: ledger.finishes())
    [start] = ledger.starts()["job"]
    assert (start < due.at.timestamp()) == bool(without)


def test_without_it_a_worker_holds_them_all(worker, shop, db):
    """The control: in memory, and its end moves each."""
    one = worker(env={"WITHOUT": "parking"})
    for name in range(20):
        shop.note.apply_async((str(name),), countdown=DAY)
    eventually(lambda: sum(map(len, db.held().values())) == 20)
    one.stop()
    assert db.length() == 20


def test_an_end_moves_none_and_a_restart_of_all_loses_none(worker, shop, ledger, db):
    """Two workers, one of which ends as it should."""
    pair, due = [worker(), worker()], Due(AHEAD + 6)
    names = [f"job-{number}" for number in range(30)]
    for name in names:
        shop.note.apply_async((name,), eta=due.at)
    eventually(lambda: len(db.parked()) == len(names))
    pair[0].stop()
    pair[1].die()
    assert (db.length(), len(db.parked())) == (0, len(names))
    worker()
    due.were_punctual(ledger, *names)
    assert not db.counters(), "nobody takes them for lost"


def test_beat_wakes_a_fleet_at_zero(worker, beat, shop, ledger, db):
    """What scales by the length of the queue sees them when they are due, and not before."""
    one, due = worker(), Due(AHEAD + 6)
    shop.note.apply_async(("job",), eta=due.at)
    eventually(lambda: db.parked() == ["job"])
    one.stop()
    always(lambda: not db.length(), during=1.0)
    beat(options=HOST)
    eventually(db.length, AHEAD + 10)
    now = datetime.now(timezone.utc)
    assert (
        due.at - timedelta(seconds=1.1)
        <= now
        <= due.at + timedelta(seconds=HOST["reap_interval"] + LATE)
    )
    worker()
    eventually(lambda: ledger.finishes().get("job"))
    assert ledger.starts()["job"][0] >= due.at.timestamp()


def test_a_stock_worker_in_the_same_fleet_holds_what_it_claims(worker, shop, ledger, db):
    worker(), worker(superfetch=False)
    due = Due()
    names = [f"job-{number}" for number in range(30)]
    for name in names:
        shop.note.apply_async((name,), eta=due.at)
    eventually(lambda: len(db.parked()) + db.client.hlen("unacked") == len(names))
    due.were_punctual(ledger, *names)


def test_a_retry_is_one_like_any_other(worker, app, ledger, db):
    worker()
    result = app.send_task("shop.put_off", ("job", AHEAD))
    eventually(lambda: db.client.zcard("superfetch:parked:celery") == 1)
    assert result.get(timeout=AHEAD + 20) == "job"
    first, second = ledger.starts()["job"]
    assert AHEAD <= second - first < AHEAD + LATE


def test_the_revoked_never_run_and_the_purged_are_gone(worker, make_app, shop, app, ledger, db):
    worker(options=HOST)
    jobs = [shop.note.apply_async((f"job-{n}",), countdown=DAY) for n in range(60)]
    eventually(lambda: len(db.parked()) == 60)
    one, others, rest = jobs[0], jobs[1:50], jobs[50:]
    one.revoke()
    app.control.revoke([job.id for job in others])

    def revoked(job: AsyncResult) -> bool:
        return bool(job.state == "REVOKED")

    eventually(lambda: all(map(revoked, (one, *others))))
    left = sorted(f"job-{n}" for n in range(50, 60))
    eventually(lambda: sorted(db.parked()) == left and db.settled())
    assert make_app().control.purge() == len(rest)
    assert not db.keys("superfetch:parked*")
    assert not ledger.starts()


def test_revoked_jobs_whose_locks_got_no_reply_are_discarded_too(worker, shop, app, ledger, db):
    """The worker tried again, found its own locks, and took the recall for another worker's."""
    worker(env={"HAPPENS": "lost_lock_replies"})
    jobs = [shop.note.apply_async((f"job-{n}",), countdown=DAY) for n in range(3)]
    eventually(lambda: len(db.parked()) == 3)
    app.control.revoke([job.id for job in jobs])
    eventually(lambda: not db.parked() and db.settled())
    assert {job.state for job in jobs} == {"REVOKED"}
    assert not ledger.starts()


def test_whoever_looks_sees_them_and_when_the_next_is_due(worker, shop, cli, db):
    one = worker()
    shop.note.apply_async(("later",), countdown=DAY)
    shop.note.apply_async(("sooner",), countdown=3_600, priority=3)
    eventually(lambda: db.parked() == ["later"] and db.parked("celery\x06\x163") == ["sooner"])
    status = cli("status", "--json").json()
    rows = {row["list"]: row for row in status["queues"] if row["parked"]}
    assert {name: row["parked"] for name, row in rows.items()} == {
        "celery": 1,
        "celery\x06\x163": 1,
    }
    dues = [datetime.fromisoformat(row["next_due"]) for row in rows.values()]
    assert sorted(
        round((due - datetime.now(timezone.utc)).total_seconds(), -2) for due in dues
    ) == [3_600, DAY]
    assert "in 59 min" in cli("status").out
    listed = {
        job["id"]: job for job in cli("jobs", "--state", "scheduled", "--json").json()["jobs"]
    }
    assert len(listed) == 2
    assert all(job["due"] for job in listed.values())
    metrics = cli("metrics", "--once").out
    assert 'superfetch_parked{queue="celery"} 2.0' in metrics
    one.stop()
    done = cli("rollback", "--json").json()
    assert (done["requeued"], db.waiting(), db.parked()) == (2, ["later"], [])


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_odd_times_and_odd_members_stop_nobody_and_lose_nothing(
    pool, worker, ledger, client, db, cli
):
    one = worker(pool=pool)
    message = json.loads(payload("far", "celery", eta="9999-12-31T23:59:59-01:00"))
    message["content-type"] = "application/x-nobody-can-decode-it"
    far = json.dumps(message).encode()
    next_year = (datetime.now(timezone.utc) + timedelta(365)).isoformat()
    ahead = [
        payload("next year", "celery", eta=next_year),
        payload("late", "celery", eta="2999-07-01T00:00:00"),
        far,
    ]
    odd = {
        "long ago": "0001-01-01T00:00:00+14:00",
        "no time": "soon",
        "NaN": float("nan"),
        "a list": [1],
        "epoch": "1970-01-01T00:00:00+00:00",
    }
    client.lpush("celery", *ahead, *(payload(id, "celery", eta=eta) for id, eta in odd.items()))
    junk = {b"junk": 1.0, b"\n": 2.0, b'"id" x\n{}': 3.0}
    client.zadd("superfetch:parked:celery", junk)
    client.zadd("superfetch:parked", {"celery": 1.0})
    client.lpush("celery", payload("epoch too", "celery", eta="1970-01-01T00:00:00"))

    def parked() -> set[bytes]:
        members = client.zrange("superfetch:parked:celery", 0, -1)
        return {member.partition(b"\n")[2] for member in members}

    eventually(lambda: parked() == {*ahead})
    eventually(db.settled)
    assert parked() == {*ahead}
    dead = {record["payload"].encode() for record in db.dead()}
    assert {b"junk", b"", b"{}"} <= dead
    assert one.alive()
    said = one.log()
    assert "Job shop.note[late] is scheduled for the year 2999," in said
    assert "Job shop.note[far] is scheduled for the year 9999," in said
    assert "shop.note[next year]" not in said, "parked like any other"
    rows = cli("jobs", "--state", "scheduled", "--json").json()["jobs"]
    assert {job["id"] for job in rows} == {"next year", "late", "far"}
    for id in ("no time", "NaN", "a list"):
        assert payload(id, "celery", eta=odd[id]) in dead
        assert f"Job shop.note[{id}] moved to the dead set" in said
    assert said.count("invalid ETA value") >= 3, "the line says why"
