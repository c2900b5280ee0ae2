"""A notice whose process it does not survive, and one whose helpers are of no help."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable
from traceback import format_exception
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, Task, chord
from celery.signals import task_failure
from redis.exceptions import OutOfMemoryError

from celery_superfetch import PoisonPill, install
from celery_superfetch.app.notice import Notices, Postponed
from celery_superfetch.app.reaper import reaper_of
from celery_superfetch.model.config import ANNOUNCE_TASK, DEAD_ID, DEAD_ID_HEADER
from celery_superfetch.model.strikes import Decision
from celery_superfetch.signals import job_recovering
from support.waiting import eventually
from support.workers.bench import Bench, payload
from support.workers.worker import Worker


@pytest.fixture
def tell(worker: Any) -> Callable[..., Worker]:
    """`tell("hook")`: a worker of `told` that kills what a dead owner held, and tells of it."""

    def start(half_way: str, **env: str) -> Worker:
        env = {"KILL": "1", "HALF_WAY": half_way, **env}
        return worker(app="told", concurrency=1, options={"reap_interval": 1}, env=env)

    return start


def choir(app: Celery, bench: Bench) -> SimpleNamespace:
    """A chord of two pills, both held by a dead owner."""
    pills = [app.signature("told.pill", (name,)) for name in ("one", "two")]
    body = app.signature("told.note", kwargs={"who": "never"})
    body.link_error(app.signature("told.new"))
    result = chord(pills, body, app=app)()
    bench.orphan("celery")
    return SimpleNamespace(body=result, pills=result.parent.results)


def announced(bench: Bench) -> bool:
    return len(bench.dead_set) > 0 and not bench.client.exists(bench.keys.unannounced)


@pytest.mark.parametrize("step", ["result", "count", "counted", "hook"])
def test_a_notice_whose_process_died_goes_on(app, bench, tell, ledger, step):
    waiting = choir(app, bench)
    tell(step)
    eventually(lambda: announced(bench), within=60)
    assert len(bench.dead_set) == 2, "the notice is not among them"
    for pill in waiting.pills:
        assert isinstance(pill.result, PoisonPill)
        assert ledger.told("stored FAILURE").count(pill.id) == 1, "one result"
    assert waiting.body.state == "FAILURE"
    with pytest.raises(Exception, match="was moved to the dead set"):
        waiting.body.get(timeout=5)
    assert len(ledger.told("new errback: ChordError")) == 1
    for what in ("poisoned", "task_failure"):
        assert sorted(ledger.told(what)) == ["one", "two"], what
    # Each once, and the one whose process died twice.
    assert set(ledger.told("job_killed")) == {pill.id for pill in waiting.pills}
    assert len(ledger.told("job_killed")) == 3
    assert "never" not in ledger.starts()


def test_what_kills_whoever_announces_is_left_out_in_the_end(app, bench, tell, ledger):
    pill = app.signature("told.pill", ("one",)).apply_async()
    bench.orphan("celery")
    one = tell("always")
    eventually(lambda: announced(bench), within=60)
    with pytest.raises(PoisonPill):
        pill.get(timeout=5)
    assert ledger.told("task_failure") == []
    assert "killed its process repeatedly" in one.log()
    assert len(bench.dead_set) == 1


def test_who_does_not_know_the_task_tells_its_caller_all_the_same(app, bench, worker, ledger):
    """Its app knew it when it killed the job; the worker that has a slot is of another release."""
    told = app.signature("told.new")
    pill = app.signature("told.pill", ("one",)).apply_async(link_error=told)
    bench.orphan("celery")
    killer = Celery("shop", set_as_current=False)
    killer.conf.task_serializer = "json"
    reaper = bench.reaper(sender=killer, notice=Notices(killer))
    kill = job_recovering.connect(lambda **_: Decision.KILL, sender=killer, weak=False)
    assert reaper.reap().killed == 1
    job_recovering.disconnect(kill, sender=killer)
    worker(concurrency=1)
    with pytest.raises(PoisonPill):
        pill.get(timeout=30)
    eventually(lambda: announced(bench))
    assert bench.client.llen("celery") == 0 or "told.new" in str(bench.queue("celery"))


def test_what_users_say_of_all_tasks_is_not_meant_for_notices(app, bench, worker):
    """A rate limit of one an hour, another queue, and no JSON."""
    conf = {
        "task_annotations": {"*": {"rate_limit": "1/h"}},
        "task_default_rate_limit": "1/h",
        "task_routes": {"*": {"queue": "elsewhere"}},
    }
    pills = [app.signature("told.pill", (f"{n}",)).apply_async(queue="celery") for n in range(3)]
    bench.orphan("celery")
    worker(app="told", conf=conf, options={"reap_interval": 1}, env={"KILL": "1"})
    for pill in pills:
        with pytest.raises(PoisonPill):
            pill.get(timeout=30)
    assert bench.client.llen("elsewhere") == 0


def test_a_notice_of_a_job_that_is_gone_says_so_and_ends(app, bench, worker):
    notice = Notices(app)("celery").replace(DEAD_ID.encode(), b"0" * 40)
    bench.push("celery", notice)
    one = worker()
    one.wait_log(f"has no effect (dead_id={'0' * 40}): the job is no longer in the dead set")
    eventually(lambda: not bench.queue("celery") and "succeeded" in one.log())


# -- in this process --------------------------------------------------------------------------


def announce(app: Celery, id: str) -> None:
    """Run the notice of a dead job here."""
    task = app.tasks[ANNOUNCE_TASK]
    task.push_request(**{DEAD_ID_HEADER: id})
    try:
        task.run()
    finally:
        task.pop_request()


def test_a_broker_that_takes_no_events_holds_no_pass_up(make_app, bench, url):
    """It accepts connections and says nothing; what is read from is another."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        conf = {"broker_read_url": url, "broker_write_url": f"redis://127.0.0.1:{port}/0"}
        app = make_app(conf=conf)
        for _ in range(20):
            make_app(superfetch=False).tasks["shop.note"].apply_async(("a",))
        bench.orphan("celery")
        report = reaper_of(app, bench.client).reap()
    assert (report.recovered, report.errors) == (20, 0)
    assert report.seconds < 10, "one wait of two seconds, not one for each"


def test_a_receiver_of_task_failure_finds_the_error_under_way(make_app, bench):
    """F4. As where Celery sends it: elastic-apm and others ask `sys.exc_info()`."""
    app, seen = make_app(), []

    def receiver(exception: Exception, traceback: Any, **_: Any) -> None:
        seen.append((sys.exc_info(), exception, traceback))

    app.tasks["shop.note"].apply_async(("a",))
    [job] = bench.killed(*bench.queue("celery"), queue="celery")
    task_failure.connect(receiver)
    try:
        announce(app, job.id)
    finally:
        task_failure.disconnect(receiver)
    [((kind, value, traceback), exception, told)] = seen
    assert kind is PoisonPill
    assert value is exception
    assert traceback is not None
    assert "PoisonPill" in "".join(format_exception(value))
    assert told


@pytest.mark.parametrize("error", [OutOfMemoryError("full"), OSError("no file"), KeyError("a")])
def test_an_errback_that_raises_in_place_ends_its_notice(make_app, bench, caplog, error):
    """Before 5.7 Celery lets its error through. One of the errback's own server was taken for one
    of the broker: the notice was tried again for ever, and called the errback each time."""
    app, calls = make_app(), []

    @app.task(name="told.here", shared=False)
    def here(request: Any, exc: Exception, traceback: Any) -> None:
        calls.append(request.id)
        raise error

    result = app.tasks["shop.note"].apply_async(("a",), link_error=here.s())
    [job] = bench.killed(*bench.queue("celery"), queue="celery")
    announce(app, job.id)
    assert calls == [result.id]
    assert not bench.untold()
    assert type(error).__name__ in caplog.text


def test_an_errback_that_cannot_be_published_is_tried_again(make_app, bench):
    """The control: the broker refuses it, since the key of its queue has another type."""
    app = make_app()
    link = app.signature("told.old").set(queue="elsewhere")
    app.tasks["shop.note"].apply_async(("a",), link_error=link)
    [job] = bench.killed(*bench.queue("celery"), queue="celery")
    bench.client.set("elsewhere", "a text")
    with pytest.raises(Postponed):
        announce(app, job.id)
    assert bench.untold()
    bench.client.delete("elsewhere")
    announce(app, job.id)
    assert not bench.untold()
    assert len(bench.queue("elsewhere")) == 1


@pytest.mark.parametrize("queue", ["celery", "celery\x06\x166"])
def test_a_notice_comes_next_and_names_its_job(app, bench, queue):
    """Also where two jobs of the same bytes are killed, each with an id of its own."""
    make = Notices(app)
    app.send_task("told.pill", ("one",))
    [raw] = bench.queue("celery")
    bench.client.delete("celery")
    owner = bench.owner(lists=[queue])
    both = bench.claimed(owner, raw, raw, queue=queue)
    bench.push(queue, b"waits")
    for claimed in both:
        recovery = bench.recovery(claimed.job)
        bench.run(bench.dead_set.kill_call(recovery, 60_000, marked=False, notice=make(queue)))
    first, second, last = bench.queue(queue)
    assert last == b"waits"
    named = [json.loads(notice)["headers"][DEAD_ID_HEADER] for notice in (first, second)]
    assert sorted(named) == sorted(job.id for job in bench.dead_set.find())
    assert len({*named}) == 2
    assert 0 < bench.client.pttl(bench.keys.queue(queue)) <= 60_000


def test_where_its_queue_is_none_any_more_a_job_is_dead_all_the_same(app, bench):
    owner = bench.owner(lists=["mail"])
    [claimed] = bench.claimed(owner, b'{"headers": {"task": "a"}}')
    bench.client.delete("mail")
    bench.client.set("mail", "something else")
    recovery = bench.recovery(claimed.job)
    call = bench.dead_set.kill_call(recovery, marked=False, notice=Notices(app)("mail"))
    assert bench.run(call)[0] == b"ok"
    assert (len(bench.dead_set), bench.client.get("mail")) == (1, b"something else")


def test_no_base_class_of_an_apps_tasks_has_a_say(bench, url):
    class Refusing(Task):
        rate_limit = "1/h"

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            raise RuntimeError("not for notices")

    app = Celery("shop", broker=url, backend="disabled://", task_cls=Refusing, set_as_current=False)
    install(app)
    task = app.tasks[ANNOUNCE_TASK]
    assert not isinstance(task, Refusing)
    assert not task.rate_limit
    [job] = bench.killed(payload("one", "celery"), queue="celery")
    announce(app, job.id)
    assert not bench.untold()
    app.close()
