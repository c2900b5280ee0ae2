"""`celery_superfetch.DeadSet(app)`: what people and programs do with the dead set."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery, states
from kombu import Queue

from celery_superfetch import DeadJob, DeadSet, JobNotFound, PoisonPill, WrongType
from celery_superfetch.app import dead_set as module
from celery_superfetch.model.job import digest
from celery_superfetch.store import dead_set as structure
from celery_superfetch.store.redis import scripts
from celery_superfetch.transport.channel import Channel
from support.workers.bench import Bench, payload, trimmed

JOB = payload("id-1")
SHORT_LIVED = Queue("short-lived", expires=60)


@pytest.fixture
def app(make_app: Any) -> Celery:
    return make_app()


@pytest.fixture
def dead(app: Celery, bench: Bench) -> Iterator[DeadSet]:
    with DeadSet(app) as opened:
        yield opened


def ids(jobs: Any) -> list[str | None]:
    return [job.task_id for job in jobs]


def fail(app: Celery, id: str) -> None:
    app.backend.store_result(id, PoisonPill("was killed"), states.FAILURE)


# -- looking


def test_it_is_looked_at(dead, bench):
    bench.killed(*(payload(n) for n in range(3)))
    bench.killed(payload("slow", task="shop.add"), queue="slow")
    assert len(dead) == 4
    assert len(list(dead)) == 4
    assert ids(dead.page(0, 1)) == ["slow"]
    assert sorted(ids(dead.find(task="shop.note"))) == ["0", "1", "2"]
    assert ids(dead.page(queue="slow")) == ["slow"]
    assert isinstance(dead.get("slow"), DeadJob)
    with pytest.raises(JobNotFound):
        dead.get("nobody")


# -- putting back


def test_one_is_put_back_as_new(dead, app, bench):
    [job] = bench.killed(JOB)
    fail(app, "id-1")
    assert app.AsyncResult("id-1").state == states.FAILURE
    done = dead.retry("id-1")
    assert (done.id, done.task, done.task_id, done.queue) == (job.id, job.task, "id-1", "mail")
    assert (done.error, done.warning) == (None, None)
    assert bench.queue() == [JOB]
    assert app.AsyncResult("id-1").state == states.PENDING
    assert not bench.client.exists(bench.keys.lock(f"retry:{job.id}"))
    with pytest.raises(JobNotFound):
        dead.retry(job)
    assert bench.queue() == [JOB]


def test_a_success_is_not_forgotten(dead, app, bench):
    [job] = bench.killed(JOB)
    app.backend.store_result("id-1", 5, states.SUCCESS)
    dead.retry(job)
    assert app.AsyncResult("id-1").result == 5


def test_a_job_that_cannot_be_put_there_keeps_its_result(dead, app, bench):
    [job] = bench.killed(JOB)
    fail(app, "id-1")
    bench.client.set("taken", "by something else")
    with pytest.raises(WrongType, match="'taken' is not a queue: the key holds a string"):
        dead.retry(job, to="taken")
    assert app.AsyncResult("id-1").state == states.FAILURE
    assert dead.get("id-1") == job
    assert dead.retry(job).error is None, "and it is not held up by the try"


def test_all_of_a_filter_are_put_back_in_the_order_they_died(dead, bench):
    raws = [payload(n) for n in range(250)]
    for at, job in enumerate(bench.killed(*raws)):
        bench.die_at(job, 1e12 + at)
    bench.killed(payload("other", task="shop.add"))
    heard: list[int] = []
    done = dead.retry_all(task="shop.note", progress=heard.append)
    assert [one.error for one in done] == [None] * 250
    assert bench.queue() == raws
    assert heard == [100, 200, 250]
    assert ids(dead) == ["other"]


def test_one_that_cannot_be_put_back_does_not_hold_up_the_others(dead, bench):
    bench.killed(payload("taken"), queue="taken")
    bench.killed(JOB)
    bench.client.set("taken", "by something else")
    done = dead.retry_many(["nobody", "taken", digest(JOB), "0" * 40])
    assert [one.error is None for one in done] == [False, False, True, False]
    assert ids(dead) == ["taken"]
    assert bench.queue() == [JOB]


def test_on_another_queue_a_job_keeps_its_priority(dead, bench):
    [job] = bench.killed(JOB, queue="mail\x06\x163")
    assert dead.retry(job, to="slow").queue == "slow\x06\x163"
    assert bench.queue("slow\x06\x163") == [JOB]


@pytest.mark.skipif(not hasattr(Channel, "_get_queue_expire"), reason="kombu knows no x-expires")
def test_a_queue_of_the_app_that_expires_goes_on_expiring(make_app, bench):
    app = make_app()
    app.conf.task_queues = [Queue("celery"), SHORT_LIVED]
    bench.killed(JOB, queue="short-lived")
    bench.push("short-lived", b"backlog")
    bench.client.pexpire("short-lived", 1000)
    with DeadSet(app) as dead:
        dead.retry("id-1")
    assert 1000 < bench.client.pttl("short-lived") <= 60_000


# -- several at a time


def race(app: Celery, threads: int = 4) -> list[module.Retried]:
    """Several retry everything at once; what each was told."""
    start = threading.Barrier(threads)

    def retry(_: int) -> list[module.Retried]:
        with DeadSet(app) as own:
            start.wait(20)
            return own.retry_all()

    with ThreadPoolExecutor(threads) as pool:
        return [one for done in pool.map(retry, range(threads)) for one in done]


def test_of_several_who_retry_a_job_one_puts_it_back(app, bench):
    raws = [payload(n) for n in range(300)]
    bench.killed(*raws)
    done = race(app)
    assert Counter(bench.queue()) == Counter(raws), "each is there, and once"
    assert Counter(one.id for one in done if one.error is None) == Counter(map(digest, raws))
    assert bench.stat("retried") == 300
    assert len(bench.dead_set) == 0


def test_control_without_the_look_into_the_dead_set_a_job_is_put_back_twice(bench, monkeypatch):
    own = scripts.source
    guard = "if redis.call('HEXISTS', jobs, id) == 0 then return 0 end"
    assert guard in own("retry")
    monkeypatch.setattr(scripts, "source", lambda name: own(name).replace(guard, ""))
    [job] = bench.killed(JOB)
    assert [bench.retry(job) for _ in range(2)] == [True, True]
    assert bench.queue() == [JOB, JOB]


def slow_one_and_quick_one(
    app: Celery, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[module.Retried], str]:
    """Two retry a job. The slow one stands still where it is about to forget the result, until
    the quick one is through and the job has run: what the quick one was told, and the result."""
    bench.killed(JOB)
    fail(app, "id-1")
    standing, go_on = threading.Event(), threading.Event()
    backend = type(app.backend)  # each thread has one of its own
    read = backend.mget

    def slow(self: Any, keys: Any) -> Any:
        found = read(self, keys)
        if threading.current_thread().name == "slow":
            standing.set()
            assert go_on.wait(20)
        return found

    monkeypatch.setattr(backend, "mget", slow)

    def retry() -> None:
        with DeadSet(app) as own:
            own.retry_all()

    thread = threading.Thread(target=retry, name="slow")
    thread.start()
    try:
        assert standing.wait(20)
        with DeadSet(app) as quick:
            done = quick.retry_all()
        if bench.queue():  # a worker takes it and runs it
            bench.client.delete("mail")
            app.backend.store_result("id-1", "of the next run", states.SUCCESS)
    finally:
        go_on.set()
        thread.join(20)
    return done, app.AsyncResult("id-1").state


def test_nobody_forgets_the_result_of_the_next_run(app, bench, monkeypatch):
    [done], state = slow_one_and_quick_one(app, bench, monkeypatch)
    assert "is being retried by another process" in (done.error or "")
    assert state == states.PENDING
    assert bench.queue() == [JOB]


def test_control_without_the_reservation_it_is_forgotten(app, bench, monkeypatch):
    monkeypatch.setattr(structure.DeadSetStore, "reserve", lambda self, jobs: [True] * len(jobs))
    [done], state = slow_one_and_quick_one(app, bench, monkeypatch)
    assert done.error is None
    assert state == states.PENDING, "the job has run, and its result is gone"
    assert bench.queue() == []


def test_a_reservation_ends_by_itself(dead, bench):
    [job] = bench.killed(JOB)
    assert bench.dead_set.reserve([job, job]) == [True, False]
    assert 0 < bench.client.pttl(bench.keys.lock(f"retry:{job.id}")) <= structure.RETRY_LOCK_MS
    with pytest.raises(JobNotFound, match="in a minute"):
        dead.retry(job)
    bench.client.delete(bench.keys.lock(f"retry:{job.id}"))
    assert dead.retry(job).error is None


def test_the_permissions_that_the_docs_name_suffice(fresh_server, make_app):
    docs = (Path(__file__).resolve().parents[3] / "docs" / "reference" / "options.md").read_text()
    [worker] = re.findall(r"ACL SETUSER shop on >password (.*?)```", docs, re.DOTALL)
    [more] = re.findall(r"jobs\s+of\s+\[the dead set\]\S+\s+also\s+`([^`]+)`", docs)
    own = fresh_server()
    root = own.client()
    password = [">password", *worker.split()]
    root.execute_command("ACL", "SETUSER", "shop", "reset", "on", *password)
    user = redis.Redis(port=own.port, username="shop", password="password")
    bench = Bench(user, dead_limit=2)
    jobs = bench.killed(*(payload(n) for n in range(3)), JOB, JOB)
    assert bench.untold(), "a worker's part"
    assert trimmed(bench.dead_set)[1] == 3
    with DeadSet(make_app(result_url=""), bench.client) as dead:
        assert dead.get(jobs[-1].id)
        with pytest.raises(redis.exceptions.NoPermissionError):
            dead.client.persist("mail")
        root.execute_command("ACL", "SETUSER", "shop", *more.split(), "+scard", "+hlen")
        assert len(list(dead)) == 2
        root.lpush("mail", b"backlog")
        root.pexpire("mail", 60_000)
        assert all(one.error is None for one in dead.retry_all())


@pytest.mark.parametrize(("held_ms", "is_free"), [(60_000, False), (3_600_000, True), (0, True)])
def test_a_lock_from_before_the_clock_was_set_back_keeps_no_notice_waiting(bench, held_ms, is_free):
    """A retry takes such a lock at once, but the caller was informed only when it had expired. The
    controls: a lock that a retry has just taken, and one without an end."""
    [job] = bench.killed(JOB)
    lock = bench.keys.lock(f"retry:{job.id}")
    bench.client.set(lock, structure.RETRY_LOCK_MS, px=held_ms or None)
    bench.client.sadd(bench.keys.unannounced, job.id)
    if is_free:
        assert bench.dead_set.awaits(job, job.notice)
    else:
        with pytest.raises(structure.BeingRetried):
            bench.dead_set.awaits(job, job.notice)
