"""A dead job that is retried while its notice runs: its caller is told of no failure that may not
be one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery
from celery.backends.redis import RedisBackend

from celery_superfetch.app.dead_set import DeadSet
from celery_superfetch.app.notice import Notices, Postponed
from celery_superfetch.model.config import ANNOUNCE_TASK, DEAD_ID_HEADER
from celery_superfetch.model.dead_job import DeadJob
from celery_superfetch.model.job import parse
from celery_superfetch.signals import job_killed
from support.servers.proxy import FaultProxy
from support.workers.bench import Bench


def killed(app: Celery, bench: Bench, raw: bytes) -> tuple[DeadJob, str]:
    """Have a job killed; the dead job, and Celery's id of its notice."""
    [claimed] = bench.claimed(bench.owner(lists=["celery"]), raw, queue="celery")
    notice = Notices(app)("celery")
    call = bench.dead_set.kill_call(bench.recovery(claimed.job), marked=False, notice=notice)
    _, dead_id, _ = bench.run(call)
    bench.client.rpop("celery")  # the notice, which a test runs here
    return bench.dead_set.get(dead_id.decode()), str(parse(notice).task_id)


def announce(app: Celery, job: DeadJob, notice_id: str) -> None:
    """Run the notice of a dead job here."""
    task = app.tasks[ANNOUNCE_TASK]
    task.push_request(**{DEAD_ID_HEADER: job.id, "id": notice_id})
    try:
        task.run()
    finally:
        task.pop_request()


@pytest.fixture
def app(make_app: Callable[..., Celery]) -> Celery:
    return make_app()


@pytest.fixture
def on_killed() -> Any:
    """`on_killed(act)`: a receiver of `job_killed` acts."""
    receivers: list[Any] = []

    def connect(act: Callable[[DeadJob], object]) -> None:
        def receiver(job: DeadJob, **_: Any) -> None:
            act(job)

        receivers.append(receiver)
        job_killed.connect(receiver)

    yield connect
    for receiver in receivers:
        job_killed.disconnect(receiver)


def sent(app: Celery, bench: Bench) -> tuple[Any, bytes]:
    """A job with an errback, as it was on its queue."""
    result = app.signature("shop.note", ("a",)).apply_async(link_error=app.signature("shop.note"))
    [raw] = bench.queue("celery")
    bench.client.delete("celery")
    return result, raw


def test_a_job_that_a_receiver_retries_is_announced_no_further(app, bench, on_killed, caplog):
    result, raw = sent(app, bench)
    job, notice_id = killed(app, bench, raw)
    on_killed(DeadSet(app).retry)
    announce(app, job, notice_id)
    assert result.state == "PENDING", "it may succeed"
    assert bench.queue("celery") == [raw], "and no errback is there"
    assert "the job was retried, deleted or dropped at a limit meanwhile" in caplog.text
    assert bench.untold() == []


def test_control_one_that_stays_is_announced(app, bench, on_killed):
    result, raw = sent(app, bench)
    job, notice_id = killed(app, bench, raw)
    seen: list[DeadJob] = []
    on_killed(seen.append)
    announce(app, job, notice_id)
    assert result.state == "FAILURE"
    [errback] = bench.queue("celery")
    assert parse(errback).task_id != result.id
    assert bench.untold() == []
    assert len(seen) == 1


def test_one_that_is_retried_while_its_result_is_stored_fails_no_chord(app, bench):
    """A result backend may take seconds."""

    class Slow(RedisBackend):
        def store_result(self, *args: Any, **kwargs: Any) -> Any:
            stored = super().store_result(*args, **kwargs)
            DeadSet(app).retry(job)
            return stored

    _, raw = sent(app, bench)
    job, notice_id = killed(app, bench, raw)
    task = app.tasks["shop.note"]
    task.backend = Slow(app=app, url=app.conf.result_backend)
    announce(app, job, notice_id)
    assert bench.queue("celery") == [raw], "and no errback is there"


def test_while_a_job_is_being_retried_its_notice_waits(app, make_app, bench, url):
    """The retry has deleted the job's result, and is about to put it on its queue."""
    result, raw = sent(app, bench)
    job, notice_id = killed(app, bench, raw)
    place = bench.client.connection_pool.connection_kwargs
    with FaultProxy(place["port"]) as proxy:
        operator = make_app(result_url=proxy.url(place["db"]))
        app.backend.store_result(result.id, ValueError("of an earlier run"), "FAILURE")
        deletes = proxy.hold_at(lambda words: words[0] == b"DEL", carried_out=True)
        retry = threading.Thread(target=DeadSet(operator).retry, args=(job,))
        retry.start()
        assert deletes.wait(30)
        with pytest.raises(Postponed, match="being retried"):
            announce(app, job, notice_id)
        proxy.cut()
        retry.join()
    announce(app, job, notice_id)
    assert result.state == "PENDING", "it may succeed"
    assert bench.queue("celery") == [raw], "and no errback is there"


def test_a_second_death_has_a_notice_of_its_own(app, bench, on_killed):
    """The job died again before the first notice has ended, and has the same id in the dead set."""
    result, raw = sent(app, bench)
    job, notice_id = killed(app, bench, raw)
    later: list[tuple[DeadJob, str]] = []

    def die_again(_: DeadJob) -> None:
        if not later:
            DeadSet(app).retry(job)
            bench.client.delete("celery")
            later.append(killed(app, bench, raw))

    on_killed(die_again)
    announce(app, job, notice_id)
    [(second, second_notice)] = later
    assert second.id == job.id
    assert result.state == "PENDING", "the second notice tells it"
    assert [one.notice for one in bench.untold()] == [second_notice]
    bench.dead_set.announced(job)
    assert [one.notice for one in bench.untold()] == [second_notice], "the first has no say"
    announce(app, second, second_notice)
    assert result.state == "FAILURE"
    assert bench.untold() == []
